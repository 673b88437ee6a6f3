// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesaic {

/// During its lifetime, the first SIGINT or SIGTERM is only recorded, so that work can stop at a
/// safe point and save; a second one exits at once with 128 + its number. The destructor restores
/// the former handlers. Throws Error (usage) if another instance is alive.
class StopSignal {
 public:
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  bool requested() const noexcept { return number() != 0; }
  /// Returns SIGINT or SIGTERM, or 0 if neither was received.
  int number() const noexcept;
};

}  // namespace moesaic
