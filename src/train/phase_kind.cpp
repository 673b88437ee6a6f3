// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/phase_kind.h"

#include "moesaic/base/pattern.h"
#include "moesaic/base/random.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/train/gradient_phase.h"

namespace moesaic {

Registry<PhaseKind>& phase_kinds() {
  static Registry<PhaseKind> registry("kind of phase", {{"gradient", gradient_phase_kind()}});
  return registry;
}

std::vector<Choice> phase_kind_choices() {
  return choices_of(phase_kinds(), "gradient");
}

std::string objective_name(const PhaseConfig& phase) {
  const PhaseKind& kind = phase_kinds().at(phase.kind.name());
  return kind.objective ? kind.objective(phase) : "";
}

std::vector<std::string> trained_parameters(const Model& model, const PhaseConfig& phase) {
  const Patterns trains(phase.trains), frozen(phase.frozen);
  std::vector<std::string> names = model.named_parameters().keys();
  std::erase_if(names, [&](const std::string& name) {
    return !trains.any_found_in(name) || frozen.any_found_in(name);
  });
  return names;
}

int Phase::agree(int signal, const Processes* processes) {
  return processes == nullptr ? signal : static_cast<int>(processes->max(signal));
}

uint64_t phase_seed(int64_t run_seed, int64_t phase_index) {
  return mix64(mix64(static_cast<uint64_t>(run_seed)) + static_cast<uint64_t>(phase_index));
}

}  // namespace moesaic
