// SPDX-License-Identifier: Apache-2.0
// The mixture of "Learning in Gated Neural Networks" as a network: E[y | x] of one output.
#pragma once

#include <cstdint>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/models/model.h"
#include "moesaic/nn/gated_mixture.h"
#include "moesaic/ops/link.h"

namespace moesaic {

inline constexpr char kGatedMoE[] = "gated-moe";

struct GatedMoEConfig {
  std::string name = kGatedMoE;
  int64_t width = 10, experts = 2;
  std::string link = kLinkNames.front();
  double noise = 0.05;
  std::string regressors = "random", gates = "zero";
};
template <class Fields>
void describe(Fields& f, GatedMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kGatedMoE}));
  f("width", c.width, "d of an input", between(1, 65536));
  f("experts", c.experts, "k", between(1, 1024));
  f("link", c.link, "g: expert i outputs g(<a_i, x>)",
    one_of({kLinkNames.begin(), kLinkNames.end()}));
  f("noise", c.noise, "sigma of the data's outputs, as losses assume it", between(1e-6, 1e3));
  f("regressors", c.regressors, "initial a_i: random unit vectors, or e_i",
    one_of({"random", "axes"}));
  f("gates", c.gates, "initial w_i: 0, or random unit vectors", one_of({"zero", "random"}));
}
ConfigProblem config_problem(const GatedMoEConfig& config);

/// y = sum_i softmax_i(<w, x>) g(<a_i, x>), see nn::GatedMixture. An input is an image of one
/// channel and one row, of d numbers; all experts compute all of them.
class GatedMoE : public Model {
 public:
  GatedMoE(GatedMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  nlohmann::ordered_json config() const override { return to_json(config_); }
  void reset_head(int64_t classes) override;
  std::vector<MoEBlock> moe_blocks() const override { return {}; }
  std::vector<int64_t> input_shape() const override { return {1, 1, config_.width}; }
  int64_t classes() const override { return 1; }
  int64_t tokens_per_image() const override { return 0; }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override;
  SettingPaths setting_paths() const override { return {.image_size = "width"}; }
  std::optional<torch::jit::Module> torchscript() const override;
  /// Returns "regressor" [k, 1, d] and "gate" [k - 1, 1, d].
  std::map<std::string, at::Tensor> weight_directions() const override;

  nn::GatedMixture mixture{nullptr};

 private:
  GatedMoEConfig config_;
};

}  // namespace moesaic
