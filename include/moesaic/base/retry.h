// SPDX-License-Identifier: Apache-2.0
// A disk or a mount that does not answer for a moment.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <thread>

#include "moesaic/base/log.h"
#include "moesaic/base/posix.h"

namespace moesaic {

/// An error that a retry may resolve, unlike a lack of permission.
class TransientError : public IoError {
 public:
  using IoError::IoError;
};

/// Waits between two tries; tests pass one that does not.
using SleepFunction = std::function<void(std::chrono::milliseconds)>;

/// The usual SleepFunction.
inline void sleep_for(std::chrono::milliseconds time) {
  std::this_thread::sleep_for(time);
}

/// Returns what `action` does. Where it throws TransientError it is tried again, three times, after
/// pauses of 0.1, 0.4 and 1.6 seconds, each of which a warning tells; never where `pause` is empty.
auto retry_io(const auto& action, const SleepFunction& pause) -> decltype(action()) {
  constexpr std::array<std::chrono::milliseconds, 3> kPauses = {std::chrono::milliseconds(100),
                                                                std::chrono::milliseconds(400),
                                                                std::chrono::milliseconds(1600)};
  for (size_t tries = 0; pause && tries < kPauses.size(); ++tries) {
    try {
      return action();
    } catch (const TransientError& error) {
      log_warning("{}; retrying in {} s", error.what(),
                  static_cast<double>(kPauses[tries].count()) / 1000);
    }
    pause(kPauses[tries]);
  }
  return action();
}

}  // namespace moesaic
