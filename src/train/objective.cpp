// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/objective.h"

#include "moesaic/train/classification_loss.h"
#include "objectives/objectives.h"

namespace moesaic {

Registry<ObjectiveKind>& objectives() {
  static Registry<ObjectiveKind> registry = [] {
    Registry<ObjectiveKind> made("loss",
                                 {{"squared", squared_objective()}, {"hinge", hinge_objective()}});
    for (const std::string& loss : classification_losses().names()) {
      made.add(loss, classification_objective(loss));
    }
    return made;
  }();
  return registry;
}

std::vector<Choice> objective_choices() {
  return choices_of(objectives(), "softmax");
}

}  // namespace moesaic
