// SPDX-License-Identifier: Apache-2.0
// Wide residual networks whose last convolution is a patch-level mixture ("Patch-level Routing in
// Mixture-of-Experts is Provably Sample-efficient for Convolutional Neural Networks", section 5.2
// and appendix L).
#pragma once

#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/models/model.h"
#include "moesaic/nn/image_network.h"
#include "moesaic/nn/map_experts.h"
#include "moesaic/papers/pmoe/model.h"

namespace moesaic {

inline constexpr char kWrnPMoE[] = "wrn-pmoe";

struct WrnMixtureConfig {
  int64_t experts = 4, patch_size = 1, kernel = 1;
  PMoERouterConfig router = {.selected = 16, .gate = "softmax_tokens"};
};
template <class Fields>
void describe(Fields& f, WrnMixtureConfig& c) {
  f("experts", c.experts, "k, which share out the last group's channels", between(1, 4096), common);
  f("patch_size", c.patch_size, "side of a patch of the feature map", between(1, 1024), common);
  f("kernel", c.kernel, "side of the kernel of an expert's convolution, odd", between(1, 15));
  f("router", c.router, "of each expert");
}

struct WrnPMoEConfig {
  std::string name = kWrnPMoE;
  int64_t channels = 3, image_size = 32, classes = 10, blocks = 1;
  double widening = 10.0;
  std::optional<WrnMixtureConfig> moe = WrnMixtureConfig{};

  /// Side of the last feature map: two groups halve it.
  int64_t map_size() const { return (image_size + 3) / 4; }
};
template <class Fields>
void describe(Fields& f, WrnPMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kWrnPMoE}));
  f("channels", c.channels, "of an image", between(1, 4096));
  f("image_size", c.image_size, "side of the images", between(4, 4096));
  f("classes", c.classes, "two: one output, whose sign is the class; more: an output each",
    between(2, 65536));
  f("blocks", c.blocks, "residual blocks of a group: the network has 6 blocks + 4 layers",
    between(1, 64));
  f("widening", c.widening, "factor on the groups' 16, 32 and 64 channels, rounded down",
    between(0.0625, 64.0), common);
  f("moe", c.moe, "mixture in place of the last group's second convolution; null: the plain WRN",
    common);
}
/// Checks that patches divide the feature map, that there are as many as an expert selects, that
/// experts share out the channels, and that the kernel is odd.
ConfigProblem config_problem(const WrnPMoEConfig& config);

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
