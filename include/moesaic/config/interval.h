// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moesaic {

/// How often something is done. A setting of this type is a text that names the unit, "20 steps" or
/// "1 epoch", or a bare number of steps.
struct Interval {
  enum class Unit { steps, epochs };

  int64_t count = 0;  ///< 0: never.
  Unit unit = Unit::steps;
  Unit plain = Unit::steps;  ///< Unit of a bare number: epochs where it was so at first.

  static constexpr Interval of_steps(int64_t count) { return {count, Unit::steps, Unit::steps}; }
  static constexpr Interval of_epochs(int64_t count) { return {count, Unit::epochs, Unit::epochs}; }

  /// Returns whether one of the last `steps` steps completed an interval: of steps by their number
  /// in the run, of epochs by that in the phase.
  bool completed_by(int64_t steps, int64_t run_step, int64_t phase_step,
                    int64_t steps_per_epoch) const;

  friend constexpr bool operator==(const Interval&, const Interval&) = default;
};

/// Returns "20 steps".
std::string to_text(const Interval& interval);

}  // namespace moesaic
