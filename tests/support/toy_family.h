// SPDX-License-Identifier: Apache-2.0
// A family that the library does not know: what a program of its own would write and register.
#pragma once

#include <torch/nn/modules/linear.h>

#include "moesaic/config/schema.h"
#include "moesaic/models/model.h"

namespace moesaic::testing {

struct ToyConfig {
  std::string name = "toy";
  int64_t image_size = 8, channels = 1, num_classes = 3, width = 6, num_experts = 4;
  double noise = 0.0;
  std::vector<int64_t> left;
};
template <class Fields>
void describe(Fields& f, ToyConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({"toy"}));
  f("image_size", c.image_size, "height and width of the images", between(1, 1024));
  f("channels", c.channels, "channels of the images", between(1, 16));
  f("num_classes", c.num_classes, "outputs of the head", between(1, 1024));
  f("width", c.width, "width of a token, which is a row of the image", between(1, 1024));
  f("num_experts", c.num_experts, "number of experts of the only MoE layer", between(1, 1024));
  f("noise", c.noise, "noise of the router in training", at_least(0.0));
  f("left", c.left, "experts that pruning left; empty: all", between(0, 1023));
}

/// Rows of an image are tokens: linear -> x + MoE layer -> mean -> head.
class Toy : public Model {
 public:
  Toy(ToyConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  nlohmann::ordered_json config() const override;
  void reset_head(int64_t classes) override;
  std::vector<MoEBlock> moe_blocks() const override { return {{0, moe}}; }
  std::vector<int64_t> input_shape() const override;
  int64_t num_classes() const override { return config_.num_classes; }
  int64_t tokens_per_image() const override { return config_.image_size; }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override;
  SettingPaths setting_paths() const override;

  torch::nn::Linear embedding{nullptr}, head{nullptr};
  nn::MoELayer moe{nullptr};

 private:
  ToyConfig config_;
};

/// Registers it as "toy", once.
void add_toy_family();

}  // namespace moesaic::testing
