// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesaic {

/// While it lives, the first SIGINT or SIGTERM is only remembered, so that work can stop at a safe
/// point and save; a second one ends the process at once with 128 + its number. The former handlers
/// come back on destruction. One may live at a time; another one throws Error(usage).
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  bool requested() const noexcept { return number() != 0; }
  /// SIGINT or SIGTERM, 0 before either came.
  int number() const noexcept;
};

}  // namespace moesaic
