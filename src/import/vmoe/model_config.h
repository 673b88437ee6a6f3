// SPDX-License-Identifier: Apache-2.0
// Model configurations of the reference implementation, and the settings that arrays imply.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "arrays.h"
#include "moesaic/config/value.h"

namespace moesaic {

struct VMoEModelConfig {
  Value model;                ///< Unparsed settings of VMoEConfig; "name" only if it was given.
  bool of_reference = false;  ///< The name is a class of the reference.
  bool dense = false;         ///< That class has no experts.
  std::vector<std::string> unused;                      ///< Known settings without use here.
  std::map<std::string, std::string> given_names = {};  ///< Given name by VMoEConfig name.
};

/// Reads a model configuration in the layout and names of the reference (VisionTransformerMoe,
/// VisionTransformerMoeEnsemble, VisionTransformer) or of this library, or an object that has one
/// under "model", with "image_size" beside it. Defaults are those of the implementation whose names
/// are used. Throws Error (usage) with file:line:column and the nearest name for an unknown
/// setting.
VMoEModelConfig vmoe_model_config(const Value& root);

/// A setting that the names and shapes of the arrays imply.
struct VMoEFact {
  std::string key;               ///< Setting, e.g. "encoder.num_heads".
  nlohmann::ordered_json value;  ///< Value, e.g. 4; null if not implied and required.
  std::string told_by;           ///< Evidence: "Encoder/.../query/kernel is [32, 4, 8]".
  int64_t patches = 0;           ///< Patches that image_size must give; 0: any.
};

/// Returns the settings that the arrays imply. Throws Error (failure) if they are of no V-MoE.
std::vector<VMoEFact> vmoe_facts(const VMoEArrays& arrays);

/// Returns the configuration completed with the facts. Throws Error (usage) in one line with both
/// values if it contradicts a fact whose key is not in `free`, and for settings that neither gives.
Value with_facts(const VMoEModelConfig& config, const std::vector<VMoEFact>& facts,
                 const std::string& from, const std::set<std::string>& free = {});

/// Returns a copy of `root` in which the setting at a dotted path has this value.
Value with_setting(const Value& root, std::string_view path, const Value& value);
/// Returns the setting at a dotted path, or nullptr if there is none.
const Value* find_setting(const Value& root, std::string_view path);
/// Returns whether there is a setting at a dotted path, with this value.
bool setting_is(const Value& root, std::string_view path, const nlohmann::ordered_json& value);
/// Returns the number of patches of an image.
int64_t patches_of(const Value& image_size, const Value& patch_size);

}  // namespace moesaic
