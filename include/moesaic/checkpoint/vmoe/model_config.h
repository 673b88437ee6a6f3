// SPDX-License-Identifier: Apache-2.0
// The reference's model configurations, and what a checkpoint's arrays tell of its network.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "moesaic/checkpoint/vmoe/arrays.h"
#include "moesaic/config/value.h"

namespace moesaic {

struct VMoEModelConfig {
  Value model;  ///< with the names of VMoEConfig; not yet parsed; no name: there was none
  bool of_reference = false;        ///< its name is one of the reference's classes
  bool dense = false;               ///< and that class knows no experts
  std::vector<std::string> unused;  ///< settings that are known and have no use here
  std::map<std::string, std::string> given_names = {};  ///< of settings, by those of VMoEConfig
};

/// Reads a model's configuration as the reference nests and names it (VisionTransformerMoe,
/// VisionTransformerMoeEnsemble, VisionTransformer), or as it is named here; or an object that has
/// one under "model", with "image_size" beside it. Defaults are those of whom the name belongs to.
/// Throws Error(usage) with file:line:column and the nearest name for an unknown setting.
VMoEModelConfig vmoe_model_config(const Value& root);

/// A setting that the arrays' names and shapes tell.
struct VMoEFact {
  std::string key;               ///< e.g. "encoder.num_heads"
  nlohmann::ordered_json value;  ///< e.g. 4; null: not told, and the configuration must have it
  std::string told_by;           ///< e.g. "Encoder/.../query/kernel is [32, 4, 8]"
  int64_t patches = 0;           ///< of image_size: how many it must have; 0: any
};

/// Throws Error(failure) for arrays that are not those of a V-MoE.
std::vector<VMoEFact> vmoe_facts(const VMoEArrays& arrays);

/// The configuration with what it leaves out and the arrays tell. Throws Error(usage) in one line
/// with both values where it says something else than they do, unless its key is in `free`, and for
/// settings that neither tells.
Value with_facts(const VMoEModelConfig& config, const std::vector<VMoEFact>& facts,
                 const std::string& from, const std::set<std::string>& free = {});

/// A copy of `root` in which the setting at a dotted path has this value.
Value with_setting(const Value& root, std::string_view path, const Value& value);
/// nullptr when there is none.
const Value* find_setting(const Value& root, std::string_view path);

}  // namespace moesaic
