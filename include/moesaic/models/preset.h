// SPDX-License-Identifier: Apache-2.0
// Networks by name: models/<family>/presets/<name>.json.
#pragma once

#include <string>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {

/// "vmoe/b16-every2", ...: what a model's configuration may have under "preset".
std::vector<std::string> preset_names();

/// The configuration with the settings of the preset that it names below its own; one without a
/// preset as it is. A preset may name another. Throws Error (usage) with the place of a name that
/// is none, and the nearest one.
Value with_preset(const Value& config);

}  // namespace moesaic
