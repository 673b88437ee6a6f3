// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moesaic/config/value.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Names that a model configuration may have under "name".
std::vector<std::string> model_names();

/// Builds the network that a configuration describes, with initial values from `seed`. Throws Error
/// (usage) with the place of a wrong key, type or value, and the nearest valid name.
std::shared_ptr<Model> build_model(const Value& config, uint64_t seed);

/// A table of the settings of one model: key, type, default, range, meaning.
std::string model_help(const std::string& name);

}  // namespace moesaic
