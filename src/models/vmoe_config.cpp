// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace moesaic {
namespace {

std::string kept_problem(const VMoEMoeConfig& moe) {
  for (const auto& [block, ids] : moe.kept_experts) {
    const bool known = std::any_of(moe.layers.begin(), moe.layers.end(),
                                   [&](int64_t layer) { return std::to_string(layer) == block; });
    if (!known) {
      return fmt::format("encoder.moe.kept_experts names block {}, which is not in layers", block);
    }
    const bool ascending = std::is_sorted(ids.begin(), ids.end(), std::less_equal<>());
    if (ids.empty() || !ascending || ids.front() < 0 || ids.back() >= moe.num_experts) {
      return fmt::format(
          "encoder.moe.kept_experts of block {} must be ascending experts below {}, at least one",
          block, moe.num_experts);
    }
  }
  return "";
}

std::string moe_problem(const VMoEEncoderConfig& encoder) {
  const VMoEMoeConfig& moe = encoder.moe;
  if (!std::is_sorted(moe.layers.begin(), moe.layers.end(), std::less_equal<>())) {
    return "encoder.moe.layers must be ascending, each block once";
  }
  if (!moe.layers.empty() && moe.layers.back() >= encoder.num_layers) {
    return fmt::format("encoder.moe.layers names block {}, but there are {} blocks (0 to {})",
                       moe.layers.back(), encoder.num_layers, encoder.num_layers - 1);
  }
  if (moe.router.num_selected_experts > moe.num_experts) {
    return fmt::format("encoder.moe.router.num_selected_experts is {}, but there are {} experts",
                       moe.router.num_selected_experts, moe.num_experts);
  }
  return kept_problem(moe);
}

}  // namespace

std::string config_problem(const VMoEConfig& config) {
  if (config.image_size % config.patch_size != 0) {
    return fmt::format("patch_size {} does not divide image_size {}", config.patch_size,
                       config.image_size);
  }
  if (config.hidden_size % config.encoder.num_heads != 0) {
    return fmt::format("encoder.num_heads {} does not divide hidden_size {}",
                       config.encoder.num_heads, config.hidden_size);
  }
  return moe_problem(config.encoder);
}

}  // namespace moesaic
