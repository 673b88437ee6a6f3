// SPDX-License-Identifier: Apache-2.0
// The pruning paper's theory, section 4.2: tokens that are patterns of an orthonormal set, and a
// network of one layer of expert choice.
#pragma once

#include "moesaic/data/dataset.h"
#include "moesaic/models/one_layer.h"

namespace moesaic {
namespace nn {

/// Experts of the pruning paper's theory (section 4.2), in the basis of the patterns. A token is
/// the number p of a pattern; neuron r of expert s has the inner product w[s, p, r] with it. The
/// expert's output is a(s) sum_r ReLU(w[s, p, r]) with a fixed sign a(s). Parameter `w` [K, d, m],
/// buffer `sign` [K]. SGD in this basis is SGD in any other, since the patterns are orthonormal.
class PatternExpertsImpl : public Experts {
 public:
  /// Neurons are drawn from N(0, std^2); the first half of the experts has the sign +1.
  PatternExpertsImpl(int64_t experts, int64_t patterns, int64_t hidden, double std,
                     const at::Generator& generator);

  /// Computes tokens rows_A1 [A, 1] -> [A, 1].
  ExpertRows compute(const at::Tensor& rows_A1, const Routing& routing,
                     const at::Generator& random) override;
  int64_t num_experts() const override { return w.size(0); }
  int64_t num_outputs() const override { return 1; }
  /// Returns the FLOPs of products of a neuron with a token of d numbers.
  double flops_per_row() const override { return 2.0 * static_cast<double>(w.size(1) * w.size(2)); }
  ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const override {
    return {.hidden = {values(w)[slot].t()}, .others = {}};
  }

  at::Tensor w, sign;
};
TORCH_MODULE(PatternExperts);

}  // namespace nn

/// Data of the pruning paper's theory, section 4.2.
struct PatternTokensConfig {
  static constexpr const char* kKey = "tokens";  ///< Key of a description.
  int64_t num_patterns = 200, num_tokens = 100, num_train = 12800, num_test = 4000, seed = 1;
};
void describe(auto& f, PatternTokensConfig& c) {
  f("num_patterns", c.num_patterns,
    "number of patterns (d): two determine the class, the others occur in both", between(3, 65536),
    renamed_from("patterns"));
  f("num_tokens", c.num_tokens, "number of tokens per example (n)", between(1, 65536),
    renamed_from("tokens"));
  f("num_train", c.num_train, "number of examples in an epoch of the endless training split",
    between(1, 1000000000), renamed_from("train"));
  f("num_test", c.num_test, "number of test examples", between(1, 10000000), renamed_from("test"));
  f("seed", c.seed, "seed of all examples", at_least(0));
}

/// Generates examples `first` to `first + count - 1` of a split. Inputs [N, 1, 1, n] are the
/// numbers of the tokens' patterns: 0 is o_1, 1 is o_2, the others do not determine the class.
/// Labels are 0 with o_1 (y = +1) and 1 with o_2 (y = -1). The class and the place of its pattern
/// are uniform, and so is each other token among the d - 2 other patterns. Example i depends on
/// seed, split and i only.
DatasetInputs pattern_tokens(const PatternTokensConfig& config, const std::string& split,
                             int64_t first, int64_t count);

inline constexpr char kPatternMoE[] = "pattern-moe";

/// Settings of a pattern-moe.
struct PatternMoEConfig {
  std::string name = kPatternMoE;
  int64_t num_patterns = 200, num_tokens = 100, num_experts = 20, num_neurons = 20,
          num_selected_tokens = 5;
  double router_std = 1e-4, neuron_std = 1e-2;
  std::vector<int64_t> kept_experts;
};
void describe(auto& f, PatternMoEConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kPatternMoE}));
  f("num_patterns", c.num_patterns, "number of patterns, and token dimension (d)",
    between(3, 65536), renamed_from("patterns"));
  f("num_tokens", c.num_tokens, "number of tokens per example (n)", between(1, 65536),
    renamed_from("tokens"));
  f("num_experts", c.num_experts,
    "even number of experts (k); the first half adds to the output, the others subtract",
    between(2, 4096), renamed_from("experts"));
  f("num_neurons", c.num_neurons, "number of neurons per expert (m)", between(1, 65536),
    renamed_from("hidden"));
  f("num_selected_tokens", c.num_selected_tokens, "number of tokens that an expert selects (l)",
    between(1, 65536), renamed_from("selected"));
  f("router_std", c.router_std, "standard deviation of the routers' initial values", above(0.0));
  f("neuron_std", c.neuron_std, "standard deviation of the neurons' initial values", above(0.0));
  f("kept_experts", c.kept_experts, "indices of the experts left after pruning; empty: all");
}
ConfigProblem config_problem(const PatternMoEConfig& config);

/// f(x) = sum over tokens j and experts s of G_j^(s) a(s) sum_r ReLU(<w_r^(s), x_j>) (eqs. 4 and
/// 7), in the basis of the patterns. An input is an image of one channel and one row, the numbers
/// of an example's n patterns, with two logits f / 2 and -f / 2, whose difference is f. Pruning
/// ranks the experts of either sign apart (section 4.2).
class PatternMoE : public OneLayerModel<PatternMoEConfig> {
 public:
  /// Draws the initial values from `seed`.
  PatternMoE(PatternMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  std::vector<MoEBlock> moe_blocks() const override {
    return {{.block = 0, .layer = moe, .num_groups = 2}};
  }
  std::vector<int64_t> input_shape() const override { return {1, 1, config_.num_tokens}; }
  int64_t num_classes() const override { return 2; }
  int64_t tokens_per_image() const override { return config_.num_tokens; }
  SettingPaths setting_paths() const override {
    return {.rows_per_expert = "num_selected_tokens",
            .image_size = "num_tokens",
            .kept_experts = "kept_experts"};
  }
  /// Returns "router" [K, 1, d] and "neuron" [K, m, d] of the experts that exist.
  std::map<std::string, at::Tensor> weight_directions() const override {
    return {{"router", router_directions()}, {"neuron", experts->w.detach().transpose(1, 2)}};
  }

  nn::PatternExperts experts{nullptr};
};

}  // namespace moesaic
