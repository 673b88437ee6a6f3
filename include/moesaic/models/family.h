// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "moesaic/base/registry.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// A family of networks: what the rest of the library needs before a network is built. What depends
/// on an existing network is a virtual function of Model.
struct Family {
  std::string description;  ///< Description for lists of families.
  /// Builds the network of a configuration whose preset is resolved already, with initial values
  /// from `seed`. Throws Error (usage) with the location of an invalid setting.
  std::function<std::shared_ptr<Model>(const Value& config, uint64_t seed)> build;
  /// Returns the family's settings, with keys that begin with "model".
  std::function<HelpRows()> help;
  /// Whether the program's help shows the settings; false where another family has the same ones.
  bool is_listed = true;
};

/// Returns the family of class Network, built as Network(Config, seed) from settings of Config.
template <class Network, class Config>
Family family_of(std::string description, bool is_listed = true) {
  return {std::move(description),
          [](const Value& config, uint64_t seed) -> std::shared_ptr<Model> {
            return std::make_shared<Network>(parse<Config>(config, "model"), seed);
          },
          [] { return help_rows<Config>("model"); }, is_listed};
}

/// Returns the registry of families, by the "name" of a model's configuration.
Registry<Family>& families();

}  // namespace moesaic
