// SPDX-License-Identifier: Apache-2.0
// The network of the latent paper (section 3.2): a router over two-layer experts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/models/model.h"
#include "moesaic/nn/shallow_experts.h"

namespace moesaic {

inline constexpr char kLatentMoE[] = "latent-moe";

struct LatentMoEConfig {
  std::string name = kLatentMoE;
  int64_t width = 200, experts = 8, hidden = 500;
  std::string activation = "relu";
  int64_t min_degree = 3, max_degree = 5;
  double bias = 1.0;
  std::string routing = nn::kEveryAboveZero;
  std::vector<int64_t> kept_experts;
};
template <class Fields>
void describe(Fields& f, LatentMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kLatentMoE}));
  f("width", c.width, "d of an input", between(1, 65536));
  f("experts", c.experts, "M; 1 is the single, 'vanilla' network", between(1, 4096));
  f("hidden", c.hidden, "J, neurons of an expert", between(1, 1048576));
  f("activation", c.activation,
    "of the neurons: relu, or hermite: a polynomial of Hermite polynomials with random signs for "
    "each neuron (appendix A.3)",
    one_of({"relu", "hermite"}));
  f("min_degree", c.min_degree, "k* of that polynomial", between(1, 16));
  f("max_degree", c.max_degree, "p* of it", between(1, 16));
  f("bias", c.bias, "C_b: biases start in U[-C_b, C_b]", between(0.0, 1e3));
  f("routing", c.routing,
    "top1: the expert of the largest logit, weighted with its softmax, ties at random; adaptive: "
    "every expert whose logit is at least 0; phases of the algorithm choose their own",
    one_of({nn::kTopOne, nn::kEveryAboveZero}));
  f("kept_experts", c.kept_experts, "the experts that pruning left; empty: all");
}
ConfigProblem config_problem(const LatentMoEConfig& config);

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
