// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/places.h"

namespace moesaic {

std::string PhasePlaces::of_model(const std::string& setting, const std::string& otherwise) const {
  const std::string in_phase = of({otherwise});
  if (!model_.is_object() || setting.empty()) return in_phase;
  return blame({place_of(model_, {setting}), in_phase});
}

bool PhasePlaces::leaves(const std::string& setting) const {
  return model_.is_object() && !setting.empty() && model_.find(setting) == nullptr;
}

std::string PhasePlaces::blame(const std::vector<std::string>& places) {
  for (const std::string& place : places) {
    if (place.starts_with("argument '")) return place;
  }
  return places.front();
}

}  // namespace moesaic
