// SPDX-License-Identifier: Apache-2.0
#include "support/toy_family.h"

#include <torch/torch.h>

#include "moesaic/models/family.h"
#include "moesaic/nn/encoder_block.h"
#include "moesaic/nn/init.h"

namespace moesaic::testing {
namespace {

nn::MoELayerOptions toy_layer(const ToyConfig& config) {
  RouteOptions rule;
  rule.k = 1;
  rule.gate = Gate::softmax_all;
  rule.kept = config.left;
  return {.width = config.width,
          .hidden = 2 * config.width,
          .num_experts = config.num_experts,
          .rule = rule,
          .noise = {.scale = config.noise}};
}

}  // namespace

Toy::Toy(ToyConfig config, uint64_t seed) : config_(std::move(config)) {
  const at::Generator generator = nn::make_generator(seed);
  const int64_t pixels = config_.channels * config_.image_size;
  embedding = register_module("embedding", nn::make_linear(pixels, config_.width, generator));
  moe = register_module("moe", nn::MoELayer(toy_layer(config_), generator));
  head = register_module("head", nn::make_linear(config_.width, config_.num_classes, generator));
}

ModelOutput Toy::forward(const at::Tensor& images_BCHW, const at::Generator& random) {
  const at::Tensor rows_BTp = images_BCHW.permute({0, 2, 1, 3}).flatten(2);
  const at::Tensor x_Td = embedding->forward(rows_BTp).flatten(0, 1);
  const nn::MoEOutput out = moe->forward(x_Td, random);
  const at::Tensor pooled =
      (x_Td + out.y_Td).view({images_BCHW.size(0), -1, config_.width}).mean(1);
  return {head->forward(pooled), pooled, {out}};
}

nlohmann::ordered_json Toy::config() const {
  ToyConfig config = config_;
  config.left = moe->is_pruned() ? moe->kept() : std::vector<int64_t>();
  return to_json(config);
}

void Toy::reset_head(int64_t classes) {
  config_.num_classes = classes;
  head = replace_module("head", torch::nn::Linear(config_.width, classes));
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : head->parameters()) parameter.zero_();
}

std::vector<int64_t> Toy::input_shape() const {
  return {config_.channels, config_.image_size, config_.image_size};
}

double Toy::flops_per_image(const RowsPerToken& rows_per_token) const {
  return layer_flops({0, moe}, tokens_per_image(), rows_per_token);
}

SettingPaths Toy::setting_paths() const {
  return {.router_noise = "noise",
          .classes = "num_classes",
          .image_size = "image_size",
          .channels = "channels",
          .kept_experts = "left"};
}

void add_toy_family() {
  if (families().find("toy") != nullptr) return;
  families().add("toy", family_of<Toy, ToyConfig>("small mixture for tests"));
}

}  // namespace moesaic::testing
