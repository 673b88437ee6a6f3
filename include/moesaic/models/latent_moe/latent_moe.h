// SPDX-License-Identifier: Apache-2.0
// The network of the latent paper (section 3.2): a router over two-layer experts.
#pragma once

#include "moesaic/models/latent_moe/config.h"
#include "moesaic/models/model.h"
#include "moesaic/nn/shallow_experts.h"

namespace moesaic {

/// y = sum_m 1[h_m >= 0] f_m(x) with h = Theta^T x, or pi_m f_m(x) of the expert m of the largest
/// h_m, see nn::latent_router_options() and nn::ShallowExperts. The router starts at 0. An input is
/// an image of one channel and one row, of d numbers. With one expert it is the vanilla network.
class LatentMoE : public Model {
 public:
  LatentMoE(LatentMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  void set_first_sample_index(int64_t image) override {
    moe->router->set_first_sample_index(image);
  }
  nlohmann::ordered_json config() const override;
  void reset_head(int64_t classes) override;
  std::vector<MoEBlock> moe_blocks() const override { return {{.block = 0, .layer = moe}}; }
  std::vector<int64_t> input_shape() const override { return {1, 1, config_.width}; }
  int64_t classes() const override { return 1; }
  int64_t tokens_per_image() const override { return 1; }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    return layer_flops(moe_blocks()[0], 1, rows_per_token);
  }
  SettingPaths setting_paths() const override {
    return {.router_name = "routing", .image_size = "width", .kept_experts = "kept_experts"};
  }
  std::optional<torch::jit::Module> torchscript() const override;
  /// Returns "neuron" [K, J, d] and "router" [K, 1, d] of the experts that exist.
  std::map<std::string, at::Tensor> weight_directions() const override;

  nn::ShallowExperts experts{nullptr};
  nn::MoELayer moe{nullptr};

 private:
  LatentMoEConfig config_;
};

}  // namespace moesaic
