// SPDX-License-Identifier: Apache-2.0
// Presets: configurations of networks by name, models/<family>/presets/<name>.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

/// Returns the valid values of "preset" in a model's configuration, e.g. "vmoe/b16-every2".
std::vector<std::string> preset_names();

/// Returns the file of a preset that there is.
std::filesystem::path preset_path(const std::string& name);

/// Returns the configuration merged over the preset that it names, or unchanged without "preset". A
/// preset may name another. What an export adds to it, kConstantsKey, is left out. Throws Error
/// (usage) with the location of an unknown name and the nearest valid one.
Value with_preset(const Value& config);

}  // namespace moesaic
