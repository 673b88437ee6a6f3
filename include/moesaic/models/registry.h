// SPDX-License-Identifier: Apache-2.0
// Families and presets by name, configurations of networks in models/<family>/presets/<name>.json,
// and how networks are built of them.
#pragma once

#include <memory>

#include "moesaic/base/filesystem.h"
#include "moesaic/config/value.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// Returns the valid values of "name" in a model's configuration, see families().
std::vector<std::string> model_names();

/// Returns the valid values of "preset" in a model's configuration, e.g. "vmoe/b16-every2".
std::vector<std::string> preset_names();

/// Returns the file of a preset that there is.
fs::path preset_path(const std::string& name);

/// Returns the configuration merged over the preset that it names, or unchanged without "preset". A
/// preset may name another. What an export adds to it, kConstantsKey, is left out. Throws Error
/// (usage) with the location of an unknown name and the nearest valid one.
Value with_preset(const Value& config);

/// Builds the network of a configuration, with or without a preset, with initial values from
/// `seed`. Throws Error (usage) with the location of a wrong key, type or value and the nearest
/// valid name, and for a network that exceeds this machine's memory, before anything is allocated.
std::shared_ptr<Model> build_model(const Value& config, uint64_t seed);

/// Builds the same network where its parameter count is known, so that no shape is built for it.
std::shared_ptr<Model> build_model(const Value& config, uint64_t seed, double parameters);

/// Builds the same network on the meta device: shapes without values, of any size that fits 64
/// bits.
std::shared_ptr<Model> build_meta_model(const Value& config);
/// Builds the network of model.config() again on the meta device, to change the copy.
std::shared_ptr<Model> meta_copy(const Model& model);

/// Returns the parameter count of the network that build_model() would make, from its shape on the
/// meta device.
double count_parameters(const Value& config);

}  // namespace moesaic
