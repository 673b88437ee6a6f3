// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "moesaic/config/value.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Names that a model configuration may have under "name", see families().
std::vector<std::string> model_names();

/// Builds the network that a configuration describes, over a preset or in full, with initial values
/// from `seed`. Throws Error (usage) with the place of a wrong key, type or value, and the nearest
/// valid name; and for a network that this machine could not hold, before anything of it is made.
std::shared_ptr<Model> build_model(const Value& config, uint64_t seed);

/// Builds the same network on the meta device: shapes without numbers, of any size that 64 bits
/// count.
std::shared_ptr<Model> build_model_shape(const Value& config);

/// Returns the numbers in the parameters of the network that build_model() would make; only its
/// shape is built.
double count_parameters(const Value& config);

/// A table of the settings of one model: key, type, default, range, meaning.
std::string model_help(const std::string& name);

}  // namespace moesaic
