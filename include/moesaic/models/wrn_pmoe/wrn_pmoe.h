// SPDX-License-Identifier: Apache-2.0
// Wide residual networks whose last convolution is a patch-level mixture ("Patch-level Routing in
// Mixture-of-Experts is Provably Sample-efficient for Convolutional Neural Networks", section 5.2
// and appendix L).
#pragma once

#include <torch/nn/modules/linear.h>

#include "moesaic/models/model.h"
#include "moesaic/models/wrn_pmoe/config.h"
#include "moesaic/nn/batch_norm.h"
#include "moesaic/nn/map_experts.h"
#include "moesaic/nn/wide_resnet.h"

namespace moesaic {

/// A wide residual network of 6 blocks + 4 layers. With `moe`, its last group has no residual:
/// behind a convolution of stride 2 each expert selects l patches of the map and makes an equal
/// share of the channels (nn/map_experts.h). Batch normalisation, ReLU, the mean over the map and a
/// linear layer follow. For two classes there is one output f, and the logits are f / 2 and -f / 2,
/// so that the cross-entropy is the logistic loss with y = +1 for class 0. Before the last
/// normalisation the channels of pruned experts are 0.
class WrnPMoE : public Model {
 public:
  WrnPMoE(WrnPMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  nlohmann::ordered_json config() const override;
  void reset_head(int64_t classes) override;
  std::vector<MoEBlock> moe_blocks() const override;
  std::vector<int64_t> input_shape() const override;
  int64_t classes() const override { return config_.classes; }
  int64_t tokens_per_image() const override;
  std::optional<PatchTokens> patch_tokens() const override;
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override;
  SettingPaths setting_paths() const override;
  bool repeats_convolutions() const override { return true; }
  std::optional<torch::jit::Module> torchscript() const override;

  const WrnPMoEConfig& settings() const { return config_; }

  nn::WideResNet trunk{nullptr};
  nn::MapExperts experts{nullptr};  ///< Those of `moe`; null without it.
  nn::MoELayer moe{nullptr};
  nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  /// Returns the channels of all experts at every position, [T, C, p p], 0 for pruned ones.
  at::Tensor all_channels(const at::Tensor& y_Td) const;
  void make_head(int64_t classes, const at::Generator& generator);

  WrnPMoEConfig config_;
};

}  // namespace moesaic
