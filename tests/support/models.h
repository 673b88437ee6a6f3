// SPDX-License-Identifier: Apache-2.0
// Networks of configurations.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/nn/module_state.h"

namespace moesaic::testing {

/// The network of a configuration in JSON.
inline std::shared_ptr<Model> model_from(const std::string& json, uint64_t seed = 1) {
  return build_model(Document::from_text(json, "model.json").root(), seed);
}

/// Expects that a network's configuration rebuilds it and counts its parameters. Returns what it
/// builds, with the values of the network, in training or not as that is.
inline std::shared_ptr<Model> rebuilt(const Model& model) {
  const Value config = Value::from_json(model.config(), "model");
  EXPECT_EQ(count_parameters(config), static_cast<double>(model.num_parameters()));
  const auto again = build_model(config, 9);
  EXPECT_EQ(again->config(), model.config());
  load_state(*again, state_of(model), "test");
  again->train(model.is_training());
  return again;
}

}  // namespace moesaic::testing
