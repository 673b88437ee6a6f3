// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesaic {

/// Paths, within "model", of the settings of a family that messages may name, e.g.
/// "encoder.moe.group_size"; "" where the family has no such setting.
struct SettingPaths {
  std::string router_name = {};        ///< Routing rule: token choice or expert choice.
  std::string router_noise = {};       ///< Scale of the noise on the router's logits.
  std::string router_noise_kind = {};  ///< Distribution of that noise.
  std::string rows_per_expert = {};    ///< Tokens that an expert selects.
  std::string capacity_factor = {};
  std::string evaluation_capacity_factor = {};  ///< Outside of training; 0 drops no token.
  std::string group_size = {};                  ///< Tokens that share a capacity.
  std::string members = {};                     ///< Members of an ensemble.
  std::string classes = {};
  std::string image_size = {};
  std::string channels = {};
  std::string kept_experts = {};  ///< Experts that pruning kept.
};

}  // namespace moesaic
