// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/objective.h"

#include "moesaic/train/classification_loss.h"
#include "objectives/objectives.h"

namespace moesaic {

Registry<ObjectiveKind>& objectives() {
  static Registry<ObjectiveKind> registry = [] {
    Registry<ObjectiveKind> made("loss", {{"squared", squared_objective()}});
    for (const std::string& loss : classification_losses().names()) {
      made.add(loss, classification_objective(loss));
    }
    return made;
  }();
  return registry;
}

std::vector<Choice> objective_choices() {
  std::vector<Choice> choices = {objectives().at("softmax").settings};
  for (const auto& [name, kind] : objectives().entries()) {
    if (name != choices.front().name()) choices.push_back(kind.settings);
  }
  return choices;
}

}  // namespace moesaic
