// SPDX-License-Identifier: Apache-2.0
// The networks of "Patch-level Routing in Mixture-of-Experts is Provably Sample-efficient for
// Convolutional Neural Networks", section 3.1.
#pragma once

#include "moesaic/models/model.h"
#include "moesaic/models/pmoe/config.h"
#include "moesaic/nn/patch_mixture.h"

namespace moesaic {

/// f_i(x) = sum_s sum_r a_{r,s,i} / D sum_{j in J_s} ReLU(<w_{r,s}, x_j>) G_{j,s} (model (1), eq.
/// 23) with D = l or n: each expert selects l of an image's n patches. Without a router it is the
/// CNN of eq. 5. For two classes there is one f, and the logits are f / 2 and -f / 2, so that the
/// cross-entropy is the logistic loss of eq. 2 with y = +1 for class 0.
class PMoE : public Model {
 public:
  PMoE(PMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  nlohmann::ordered_json config() const override;
  void reset_head(int64_t classes) override;
  std::vector<MoEBlock> moe_blocks() const override;
  std::vector<int64_t> input_shape() const override;
  int64_t classes() const override { return config_.classes; }
  int64_t tokens_per_image() const override { return config_.patches(); }
  std::optional<PatchTokens> patch_tokens() const override;
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override;
  SettingPaths setting_paths() const override;
  std::optional<torch::jit::Module> torchscript() const override;
  /// Returns "neuron" [K, h, d] and "router" [K, 1, d] of the experts that exist.
  std::map<std::string, at::Tensor> weight_directions() const override;

  const PMoEConfig& settings() const { return config_; }

  nn::PatchMixture mixture{nullptr};

 private:
  PMoEConfig config_;
};

}  // namespace moesaic
