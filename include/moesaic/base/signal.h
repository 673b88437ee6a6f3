// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesaic {

/// During its lifetime, the first SIGINT, SIGTERM or SIGHUP is only recorded, so that work can stop
/// at a safe point and save; a second one exits at once with 128 + its number. SIGHUP stays ignored
/// where it was. The destructor restores the former handlers. Throws Error (usage) if another
/// instance is alive.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  bool requested() const noexcept { return number() != 0; }
  /// Returns the signal, or 0 if none was received.
  int number() const noexcept;
};

}  // namespace moesaic
