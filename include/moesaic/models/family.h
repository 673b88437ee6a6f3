// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "moesaic/base/registry.h"
#include "moesaic/config/schema.h"
#include "moesaic/config/value.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// A kind of network: all that the rest of the library asks of it before one is built. What differs
/// between networks that exist is a virtual function of Model.
struct Family {
  /// Builds the network that a configuration describes, with initial values from `seed`. Presets
  /// are filled in already. Throws Error (usage) with the place of what is wrong.
  std::function<std::shared_ptr<Model>(const Value& config, uint64_t seed)> build;
  /// Returns a table of its settings: key, type, default, range, meaning.
  std::function<std::string()> help;
  /// Whether the program's help prints that table; false where another family's is the same.
  bool listed = true;
};

/// Returns the family whose Network(Config, seed) is built from settings described by Config.
template <class Network, class Config>
Family family_of() {
  return {[](const Value& config, uint64_t seed) -> std::shared_ptr<Model> {
            return std::make_shared<Network>(parse<Config>(config, "model"), seed);
          },
          [] { return help_text<Config>(); }};
}

/// All families, by what a model's configuration has under "name".
Registry<Family>& families();

}  // namespace moesaic
