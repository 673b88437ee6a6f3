// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library: a single line that says where, what, and the nearest valid
// choice.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace moesaic {

/// `usage`: the caller asked for something wrong (a bad setting, an unknown name).
/// `failure`: the request was fine and could not be carried out (bad data, input and output,
/// memory).
enum class ErrorKind { usage, failure };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }
  /// What the program returns to the shell: 2 for wrong use, 1 for a failure.
  int exit_code() const noexcept { return kind_ == ErrorKind::usage ? 2 : 1; }

 private:
  ErrorKind kind_;
};

/// Throws an Error of kind `failure`.
template <class... A>
[[noreturn]] void fail(fmt::format_string<A...> format, A&&... arguments) {
  throw Error(ErrorKind::failure, fmt::format(format, std::forward<A>(arguments)...));
}

/// Throws an Error of kind `usage`.
template <class... A>
[[noreturn]] void fail_usage(fmt::format_string<A...> format, A&&... arguments) {
  throw Error(ErrorKind::usage, fmt::format(format, std::forward<A>(arguments)...));
}

}  // namespace moesaic
