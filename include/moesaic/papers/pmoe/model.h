// SPDX-License-Identifier: Apache-2.0
// The networks of "Patch-level Routing in Mixture-of-Experts is Provably Sample-efficient for
// Convolutional Neural Networks", section 3.1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/config/sides.h"
#include "moesaic/models/model.h"
#include "moesaic/nn/patch_mixture.h"
#include "moesaic/ops/route_expert_choice.h"

namespace moesaic {

inline constexpr char kPMoE[] = "pmoe";

struct PMoERouterConfig {
  int64_t selected = 6;
  std::string gate = "softmax_selected";
  double init_std = 1e-4;
  std::vector<int64_t> kept_experts;
};
template <class Fields>
void describe(Fields& f, PMoERouterConfig& c) {
  f("selected", c.selected, "l, patches of an image that an expert selects", between(1, 65536),
    common);
  f("gate", c.gate,
    "softmax over the patches that an expert selected (joint training), or over all; one (separate "
    "training)",
    one_of({"softmax_selected", "softmax_tokens", "one"}), common);
  f("init_std", c.init_std, "deviation of the initial values", at_least(0.0));
  f("kept_experts", c.kept_experts, "the experts that pruning left; empty: all");
}

struct PMoEConfig {
  std::string name = kPMoE;
  int64_t channels = 1;
  Sides image_size = 112, patch_size = 28;
  int64_t classes = 2, experts = 8, hidden = 5;
  std::string divisor = "patches", output = "normal";
  double init_std = 0.01;
  std::optional<PMoERouterConfig> router = PMoERouterConfig{};

  int64_t patches() const {
    return image_size.height / patch_size.height * (image_size.width / patch_size.width);
  }
  int64_t width() const { return channels * patch_size.height * patch_size.width; }
  /// Patches that an expert gets: all of them without a router.
  int64_t selected() const { return router ? router->selected : patches(); }
};
template <class Fields>
void describe(Fields& f, PMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kPMoE}));
  f("channels", c.channels, "of an image", between(1, 4096));
  f("image_size", c.image_size, "side of the images, or [height, width]", between(1, 65536));
  f("patch_size", c.patch_size, "side of a patch, or [height, width]", between(1, 65536));
  f("classes", c.classes, "two: one output f, whose sign is the class; more: an output each",
    between(2, 4096));
  f("experts", c.experts, "k", between(1, 4096), common);
  f("hidden", c.hidden, "m / k, neurons of an expert", between(1, 65536), common);
  f("divisor", c.divisor, "what an expert's sum is divided by: l (eq. 1) or all n patches",
    one_of({"selected", "patches"}));
  f("output", c.output,
    "fixed output weights: normal, or by_class: each expert adds to its class, with two classes "
    "+1 and -1",
    one_of({"normal", "by_class"}));
  f("init_std", c.init_std, "deviation of the neurons' initial values", at_least(0.0));
  f("router", c.router, "of each expert; null: a single expert with all patches, the CNN", common);
}
/// Checks that patches divide an image and that an expert selects no more than there are; classes
/// share out experts whose outputs are by class; one expert without a router.
ConfigProblem config_problem(const PMoEConfig& config);

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
