// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/vmoe/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "moesaic/base/suggestions.h"

namespace moesaic {
namespace {

ConfigProblem kept_blocks_problem(const VMoEMoeConfig& moe) {
  for (const auto& [block, ids] : moe.kept_experts) {
    const bool known = std::any_of(moe.layers.begin(), moe.layers.end(),
                                   [&](int64_t layer) { return std::to_string(layer) == block; });
    const std::string key = "encoder.moe.kept_experts." + block;
    if (!known) {
      return {fmt::format("encoder.moe.kept_experts names block {}, which is not in layers [{}]",
                          block, fmt::join(moe.layers, ", ")),
              {key + ":"}};
    }
    const std::string what = fmt::format("encoder.moe.kept_experts of block {}", block);
    ConfigProblem problem = kept_problem(ids, moe.num_experts, what, key);
    if (!problem.empty()) return problem;
  }
  return {};
}

/// Checks that every expert of a merged block goes to a kept one, and kept ones to themselves.
ConfigProblem merged_problem(const VMoEMoeConfig& moe) {
  for (const auto& [block, into] : moe.merged_into) {
    const std::string key = "encoder.moe.merged_into." + block;
    const auto kept = moe.kept_experts.find(block);
    if (kept == moe.kept_experts.end()) {
      return {fmt::format("{} is given, but encoder.moe.kept_experts has no block {}; give both",
                          key, block),
              {key}};
    }
    if (std::ssize(into) != moe.num_experts) {
      return {fmt::format("{} must have {} experts, found {}", key, moe.num_experts, into.size()),
              {key}};
    }
    for (const int64_t id : into) {
      const bool is_kept = std::ranges::binary_search(kept->second, id);
      if (is_kept && into[static_cast<size_t>(id)] == id) continue;
      return {fmt::format("{} names expert {}, which is not kept; choose one of {}", key, id,
                          fmt::join(kept->second, ", ")),
              {key}};
    }
    for (const int64_t id : kept->second) {
      if (into[static_cast<size_t>(id)] == id) continue;
      return {fmt::format("{} merges expert {}, which is kept", key, id), {key}};
    }
    if (moe.router.pruned != PrunedSelection::zero || moe.mean_replacement) {
      return {fmt::format("{} needs router.pruned_selection to be 'zero', and no mean_replacement",
                          key),
              {key, "encoder.moe.router.pruned_selection", "encoder.moe.mean_replacement"}};
    }
  }
  return {};
}

/// Returns the context of the routers for checks.
RouterContext router_place(const VMoEMoeConfig& moe) {
  return {.num_experts = moe.num_experts,
          .group_size = moe.group_size,
          .is_pruned = !moe.kept_experts.empty(),
          .router = "encoder.moe.router.",
          .group_size_key = "encoder.moe.group_size",
          .experts_key = "encoder.moe.num_experts"};
}

/// Checks that members divide the experts and the tokens of each group evenly.
ConfigProblem ensemble_problem(const VMoEMoeConfig& moe) {
  const int64_t members = moe.ensemble_size;
  const std::string path = "encoder.moe.", size = path + "ensemble_size";
  if (members == 1) return {};
  if (moe.layers.empty()) {
    return {fmt::format("{} is {}, but {}layers has no block; choose 1", size, members, path),
            {size}};
  }
  if (moe.num_experts % members != 0) {
    return {fmt::format("{} {} does not divide the {} experts; choose {}", size, members,
                        moe.num_experts, nearest_divisor(moe.num_experts, members)),
            {size, path + "num_experts"}};
  }
  if (moe.group_size % members != 0) {
    return {fmt::format("{} {} does not divide {}group_size {}; choose {}", size, members, path,
                        moe.group_size,
                        nearest_divisor(std::gcd(moe.num_experts, moe.group_size), members)),
            {size, path + "group_size"}};
  }
  if (moe.router.is_expert_choice()) {
    return {fmt::format("{}router.name {} does not support an ensemble; choose {}", path,
                        kExpertChoice, kTokenChoice),
            {path + "router.name", size}};
  }
  if (moe.router.is_token_choice() && moe.router.k > moe.num_experts / members) {
    return {fmt::format("{0}router.num_selected_experts is {1}, but a member has {2} experts; "
                        "choose at most {2}",
                        path, moe.router.k, moe.num_experts / members),
            {path + "router.num_selected_experts", size}};
  }
  if (moe.router.pruned != PrunedSelection::zero) {
    return {fmt::format("{}router.pruned_selection must be 'zero' in an ensemble", path),
            {path + "router.pruned_selection", size}};
  }
  return {};
}

std::string sides_text(const Size2d& sides) {
  if (sides.is_square()) return fmt::format("{}", sides.height);
  return fmt::format("[{}, {}]", sides.height, sides.width);
}

ConfigProblem moe_problem(const VMoEConfig& config) {
  const VMoEEncoderConfig& encoder = config.encoder;
  VMoEMoeConfig moe = encoder.moe;
  const double tokens = static_cast<double>(config.num_tokens() * moe.ensemble_size);
  if (tokens * static_cast<double>(moe.num_group_images) > kMaxTokens) {
    return {fmt::format("encoder.moe.num_group_images {} x {} tokens exceed the {} tokens of a "
                        "group; choose {}",
                        moe.num_group_images, tokens, kMaxTokens,
                        static_cast<int64_t>(kMaxTokens / tokens)),
            {"encoder.moe.num_group_images"}};
  }
  moe.group_size = config.group_size();
  if (!std::is_sorted(moe.layers.begin(), moe.layers.end(), std::less_equal<>())) {
    return {"encoder.moe.layers must be ascending, each block once", {"encoder.moe.layers"}};
  }
  if (!moe.layers.empty() && moe.layers.back() >= encoder.num_layers) {
    return {fmt::format("encoder.moe.layers names block {}, but there are {} blocks (0 to {})",
                        moe.layers.back(), encoder.num_layers, encoder.num_layers - 1),
            {"encoder.moe.layers", "encoder.num_layers"}};
  }
  const RouterContext place = router_place(moe);
  ConfigProblem problem = routing_problem(moe.router, place);
  if (problem.empty()) problem = ensemble_problem(moe);
  if (problem.empty() && !moe.layers.empty()) {
    problem = capacity_problem(moe.router, place);
  }
  if (problem.empty()) problem = kept_blocks_problem(moe);
  if (problem.empty()) problem = merged_problem(moe);
  if (!problem.empty()) return problem;
  return mean_replacement_problem(moe.mean_replacement, moe.router, place.router,
                                  "encoder.moe.mean_replacement");
}

/// Checks the class token and the registers against the classifier and the positions.
ConfigProblem token_problem(const VMoEConfig& config) {
  const std::string position = "encoder.position_emb.class_token";
  if (config.classifier.starts_with(kPoolToken) && !config.has_class_token()) {
    return {fmt::format("classifier '{}' needs a class_token; choose 'gap'", config.classifier),
            {"class_token", "classifier"}};
  }
  if (config.num_registers > 0 && config.has_class_token() && config.has_learned_positions() &&
      config.encoder.position_emb.class_token) {
    return {fmt::format("num_registers needs {} false: registers have no position", position),
            {"num_registers", position}};
  }
  const bool pools_one = config.pooled_size() == config.hidden_size && !config.has_map_head();
  if (config.norm_after_pooling && !pools_one) {
    return {fmt::format("norm_after_pooling is for a classifier of one token, such as 'gap', found "
                        "'{}'",
                        config.classifier),
            {"norm_after_pooling", "classifier"}};
  }
  return {};
}

}  // namespace

ConfigProblem config_problem(const VMoEConfig& config) {
  const Size2d &image = config.image_size, &patch = config.patch_size;
  if (image.height % patch.height != 0 || image.width % patch.width != 0) {
    const auto multiple = [](int64_t side, int64_t of) {
      return std::max<int64_t>(1, (side + of / 2) / of) * of;
    };
    const Size2d divisor(nearest_divisor(image.height, patch.height),
                         nearest_divisor(image.width, patch.width));
    const Size2d other(multiple(image.height, patch.height), multiple(image.width, patch.width));
    return {
        fmt::format(
            "patch_size {} does not divide image_size {}; choose patch_size {} or image_size {}",
            sides_text(patch), sides_text(image), sides_text(divisor), sides_text(other)),
        {"patch_size", "image_size"}};
  }
  Size2d left = patch;
  for (size_t i = 0; i < config.stem.size(); ++i) {
    const int64_t stride = config.stem[i].stride;
    if (left.height % stride != 0 || left.width % stride != 0) {
      const std::string of =
          i == 0 ? "" : fmt::format("the {} that earlier strides leave of ", sides_text(left));
      return {fmt::format("stem.{}.stride {} does not divide {}patch_size {}; choose 1", i, stride,
                          of, sides_text(patch)),
              {fmt::format("stem.{}.stride", i), "stem", "patch_size"}};
    }
    left = {left.height / stride, left.width / stride};
  }
  if (config.hidden_size % config.encoder.num_heads != 0) {
    return {fmt::format("encoder.num_heads {} does not divide hidden_size {}; choose {}",
                        config.encoder.num_heads, config.hidden_size,
                        nearest_divisor(config.hidden_size, config.encoder.num_heads)),
            {"encoder.num_heads", "hidden_size"}};
  }
  if (config.name == kVMoE && config.encoder.moe.ensemble_size > 1) {
    return {fmt::format("encoder.moe.ensemble_size is for the family {}; set it to 1", kE3),
            {"encoder.moe.ensemble_size", "name"}};
  }
  if (config.map_head_qk_norm && !config.has_map_head()) {
    return {"map_head_qk_norm is for the classifier 'map'; leave it out",
            {"map_head_qk_norm", "classifier"}};
  }
  if (ConfigProblem problem = token_problem(config); !problem.empty()) return problem;
  const bool waves = config.encoder.position_emb.name == kSinCos2d;
  if (waves && (config.hidden_size % 4 != 0 || config.hidden_size < 8)) {
    return {fmt::format("encoder.position_emb '{}' needs a hidden_size that is a multiple of 4 and "
                        "at least 8, found {}",
                        kSinCos2d, config.hidden_size),
            {"encoder.position_emb", "hidden_size"}};
  }
  return moe_problem(config);
}

}  // namespace moesaic
