// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesaic {

/// Where a family's configuration has settings that a run may have to blame: paths within "model",
/// e.g. "encoder.moe.group_size"; "" where the family has no such setting.
struct SettingPaths {
  std::string router_name = {};        ///< whether tokens choose experts, or experts tokens
  std::string router_noise = {};       ///< scale of the noise on the router's logits
  std::string router_noise_kind = {};  ///< whether that noise is gaussian
  std::string rows_per_expert = {};    ///< tokens that an expert selects
  std::string capacity_factor = {};
  std::string group_size = {};  ///< tokens that share a capacity
  std::string members = {};     ///< of an ensemble
  std::string classes = {};
  std::string image_size = {};
  std::string channels = {};
  std::string kept_experts = {};  ///< experts that pruning left
};

}  // namespace moesaic
