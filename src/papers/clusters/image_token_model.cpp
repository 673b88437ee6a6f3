// SPDX-License-Identifier: Apache-2.0
#include "moesaic/papers/clusters/image_token_model.h"

#include <torch/torch.h>

namespace moesaic {

void ImageTokenModel::set_layer(std::shared_ptr<nn::Experts> experts,
                                const ImageTokenRouterConfig* router, int64_t width, int64_t count,
                                const at::Generator& generator) {
  layer_experts_ = std::move(experts);
  if (router == nullptr) {
    register_module("experts", layer_experts_);
    return;
  }
  moe = register_module(
      "moe", nn::MoELayer(router_options(*router, width, count), layer_experts_, generator));
  if (router->stand_ins && moe->is_pruned()) moe->add_stand_ins();
  const torch::NoGradGuard no_grad;
  moe->router->weight.zero_();
}

void ImageTokenModel::set_first_sample_index(int64_t image) {
  if (!moe.is_empty()) moe->router->set_first_sample_index(image);
}

std::vector<MoEBlock> ImageTokenModel::moe_blocks() const {
  if (moe.is_empty()) return {};
  return {{.block = 0, .layer = moe}};
}

double ImageTokenModel::flops_per_image(const RowsPerToken& rows_per_token) const {
  if (moe.is_empty()) return layer_experts_->flops_per_row();
  return layer_flops({.block = 0, .layer = moe}, tokens_per_image(), rows_per_token);
}

SettingPaths ImageTokenModel::setting_paths() const {
  const std::string router = "router.";
  return {.router_name = router + "name",
          .router_noise = router + "noise_scale",
          .router_noise_kind = router + "noise",
          .rows_per_expert = router + "num_selected_tokens",
          .capacity_factor = router + "dispatcher.capacity_factor",
          .evaluation_capacity_factor = router + "dispatcher.evaluation_capacity_factor",
          .group_size = router + "group_size",
          .classes = "classes",
          .kept_experts = router + "kept_experts"};
}

}  // namespace moesaic
