// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/phase_kind.h"

#include "moesaic/base/random.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic {

Registry<PhaseKind>& phase_kinds() {
  static Registry<PhaseKind> registry("kind of phase", {{"gradient", gradient_phase_kind()}});
  return registry;
}

std::vector<Choice> phase_kind_choices() {
  std::vector<Choice> choices = {phase_kinds().at("gradient").settings};
  for (const auto& [name, kind] : phase_kinds().entries()) {
    if (name != choices.front().name()) choices.push_back(kind.settings);
  }
  return choices;
}

uint64_t phase_seed(int64_t run_seed, int64_t phase_index) {
  return mix64(mix64(static_cast<uint64_t>(run_seed)) + static_cast<uint64_t>(phase_index));
}

}  // namespace moesaic
