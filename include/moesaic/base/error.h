// SPDX-License-Identifier: Apache-2.0
// The library's exceptions. Their message is one line: where, what, nearest valid choice.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "moesaic/base/text.h"

namespace moesaic {

/// `usage`: the caller asked for something invalid (a bad setting, an unknown name). `failure`: the
/// request was valid but could not be carried out (bad data, an I/O error, out of memory).
enum class ErrorKind { usage, failure };

/// The exception of every function here. what() is one line: where, what, the nearest valid choice.
class Error : public std::runtime_error {
 public:
  /// `message` is that line, of which what() is the abridged() form.
  Error(ErrorKind kind, const std::string& message)
      : std::runtime_error(abridged(message)), kind_(kind) {}

  /// Returns the kind of the error.
  ErrorKind kind() const noexcept { return kind_; }
  /// Returns the exit status of the program: 2 for a usage error, 1 for a failure.
  int exit_code() const noexcept { return kind_ == ErrorKind::usage ? 2 : 1; }

 private:
  ErrorKind kind_;
};

/// Error, of kind `failure`, for values that end training: NaN or infinity in logits routed on the
/// CPU or in the results of a step, or a step that is too large. The trainer adds the place and
/// what to try.
class DivergedError : public Error {
 public:
  /// `what` says where it happened.
  explicit DivergedError(const std::string& what) : Error(ErrorKind::failure, what) {}
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
