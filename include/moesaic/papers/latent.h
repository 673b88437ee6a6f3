// SPDX-License-Identifier: Apache-2.0
// "Mixture of Experts Provably Detect and Learn the Latent Cluster Structure in Gradient-Based
// Learning": the data of assumption 3.2 and the network of section 3.2, a router over two-layer
// experts.
#pragma once

#include "moesaic/data/dataset.h"
#include "moesaic/models/one_layer.h"

namespace moesaic {

struct LatentMoEConfig;

namespace nn {

/// Returns sigma(<w[j], x> + b[j]) for the rows of x_Rd: [R, J]. sigma is the ReLU, or where
/// hermite_JK is defined the polynomials of these coefficients.
at::Tensor shallow_neurons(const at::Tensor& x_Rd, const at::Tensor& w_Jd, const at::Tensor& b_J,
                           const at::Tensor& hermite_JK);

/// Two-layer networks of the latent paper (section 3.2), f_m(x) = 1/J sum_j a[m, j] sigma(<w[m, j],
/// x> + b[m, j]) with rows w[m, j] of norm 1. sigma is the ReLU, or for each neuron sum_i eps_i
/// He_i / sqrt(i!) with random signs eps (appendix A.3). Parameters `w` [M, J, d], `a` [M, J], `b`
/// [M, J]; buffer `hermite` [M, J, p* + 1] of those signs, and 0 for i < k*.
class ShallowExpertsImpl : public Experts {
 public:
  /// Draws the initial values from `generator`.
  ShallowExpertsImpl(const LatentMoEConfig& config, const at::Generator& generator);

  /// First layers and output weights.
  struct Neurons {
    at::Tensor w, a;  ///< Tensors of the parameters' shapes, on the CPU.
  };
  /// Returns new first layers, uniform on the sphere, and a = +-1 (Algorithm 1).
  Neurons draw_neurons(const at::Generator& generator) const;

  ExpertRows compute(const at::Tensor& rows_Ad, const Routing& routing,
                     const at::Generator& random) override;
  int64_t num_experts() const override { return w.size(0); }
  int64_t num_outputs() const override { return 1; }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(w.size(1) * (w.size(2) + 1));
  }
  ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const override {
    return {.hidden = {values(w)[slot]}, .others = {values(a)[slot].unsqueeze(0)}};
  }
  ExpertsScript script_source() const override;

  /// Returns the expert's outputs for the rows of x_Rd: [R].
  at::Tensor outputs_of(const at::Tensor& x_Rd, int64_t slot) const;

  at::Tensor w, a, b, hermite;
};
TORCH_MODULE(ShallowExperts);

// The two ways in which the latent paper routes (section 3.2).

inline constexpr const char *kTopOne = "top1", *kEveryAboveZero = "adaptive";

/// Returns the options of a router for "top1" (F_1: the expert of the largest logit, weighted with
/// its softmax over all, ties at random) or "adaptive" (F^_M: every expert whose logit is at least
/// 0, with gate 1).
RouterOptions latent_router_options(int64_t width, int64_t experts, const std::string& routing,
                                    const std::vector<int64_t>& kept);

/// Returns "top1" or "adaptive", by a router's rule.
std::string latent_routing_name(const RouterOptions& options);

}  // namespace nn

/// Settings of data of format "latent" (assumption 3.2).
struct LatentClustersConfig {
  static constexpr const char* kKey = "mixture";  ///< Key of a description.
  int64_t width = 200, num_clusters = 2;
  double rho = 1.0, noise = 0.0;
  std::vector<std::vector<double>> local = {{0, 0, 0, 1, 0, 1}, {0, 0, 0, 1, 1}};
  std::vector<double> global = {0, 0, 0, 1};
  std::vector<double> signs;
  std::string directions = "orthogonal";
  int64_t num_train = 65536, num_test = 8192;
  int64_t seed = 1;
};
void describe(auto& f, LatentClustersConfig& c) {
  f("width", c.width, "input dimension (d)", between(1, 65536));
  f("num_clusters", c.num_clusters,
    "number of clusters (C), each with a mean, a task of its own and a sign", between(2, 1024),
    renamed_from("clusters"));
  f("rho", c.rho, "norm of the cluster means", between(1e-6, 1e3));
  f("noise", c.noise,
    "standard deviation (zeta) of the noise on training targets; test targets have none, so that "
    "the test error is that of the learned function",
    between(0.0, 1e3));
  f("local", c.local,
    "coefficients of the normalized Hermite polynomials, by degree from 0, of the clusters' own "
    "tasks; fewer lists than clusters repeat",
    not_empty);
  f("global", c.global,
    "coefficients of the normalized Hermite polynomials, by degree from 0, of the task that all "
    "clusters share, each with its sign",
    not_empty);
  f("signs", c.signs,
    "signs (s_c) of the shared task, one per cluster; empty: +1 and -1 in turn, of an odd number "
    "of clusters +1, -1/2, -1/2 at the end, whose sum is 0",
    between(-1e3, 1e3));
  f("directions", c.directions,
    "kind of the directions of means and tasks: random unit vectors, made orthogonal by "
    "Gram-Schmidt or unchanged",
    one_of({"orthogonal", "random"}));
  f("num_train", c.num_train, "number of examples in an epoch of the endless training split",
    between(1, 1e12), renamed_from("train"));
  f("num_test", c.num_test, "number of test examples", between(1, 1e8), renamed_from("test"));
  f("seed", c.seed, "seed of directions and examples", at_least(0));
}
/// Refuses more directions than dimensions, tasks with a constant term or no other one, and another
/// number of signs than of clusters.
ConfigProblem config_problem(const LatentClustersConfig& config);

/// Returns one line on how tasks and directions violate assumptions 3.2 and 3.3 of the theorems; ""
/// where they satisfy both.
std::string assumption_violations(const LatentClustersConfig& config);

/// What the data are made of, float32 rows: w_c [C, d], w_g [1, d] and the means rho v_c [C, d].
struct LatentTruth {
  at::Tensor local_Cd, global_1d, mean_Cd;
  std::vector<double> sign;  ///< s_c
};
/// Returns the directions and means, drawn from the seed of `config`.
LatentTruth latent_truth(const LatentClustersConfig& config);

/// Generates examples `first` to `first + count - 1` of a split, inputs [N, 1, 1, d] with a target
/// each and clusters as groups. c is uniform, x ~ N(rho v_c, I), y = f_c(<w_c, x>) + s_c g(<w_g,
/// x>), with noise of N(0, zeta^2) in the training split. Example i depends on seed, split and i
/// only, with the same bits on every processor.
DatasetInputs latent_examples(const LatentClustersConfig& config, const LatentTruth& truth,
                              const std::string& split, int64_t first, int64_t count);

inline constexpr char kLatentMoE[] = "latent-moe";

/// Settings of a latent-moe.
struct LatentMoEConfig {
  std::string name = kLatentMoE;
  int64_t width = 200, num_experts = 8, num_neurons = 500;
  std::string activation = "relu";
  int64_t min_degree = 3, max_degree = 5;
  double max_bias = 1.0;
  std::string routing = nn::kEveryAboveZero;
  std::vector<int64_t> kept_experts;
};
void describe(auto& f, LatentMoEConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kLatentMoE}));
  f("width", c.width, "input dimension (d)", between(1, 65536));
  f("num_experts", c.num_experts, "number of experts (M); 1: the single, 'vanilla' network",
    between(1, 4096), renamed_from("experts"));
  f("num_neurons", c.num_neurons, "number of neurons per expert (J)", between(1, 1048576),
    renamed_from("hidden"));
  f("activation", c.activation,
    "activation function of the neurons: relu, or hermite: a sum of Hermite polynomials with "
    "random signs for each neuron (appendix A.3)",
    one_of({"relu", "hermite"}));
  f("min_degree", c.min_degree, "lowest degree (k*) of the hermite activation", between(1, 16));
  f("max_degree", c.max_degree, "highest degree (p*) of the hermite activation", between(1, 16));
  f("max_bias", c.max_bias,
    "largest magnitude (C_b) of the initial biases, which are uniform around 0", between(0.0, 1e3),
    renamed_from("bias"));
  f("routing", c.routing,
    "routing rule outside of the algorithm's phases, which choose their own: top1: the expert of "
    "the largest logit, weighted with its softmax, ties at random; adaptive: every expert whose "
    "logit is at least 0",
    one_of({nn::kTopOne, nn::kEveryAboveZero}));
  f("kept_experts", c.kept_experts, "indices of the experts left after pruning; empty: all");
}
ConfigProblem config_problem(const LatentMoEConfig& config);

/// y = sum_m 1[h_m >= 0] f_m(x) with h = Theta^T x, or pi_m f_m(x) of the expert m of the largest
/// h_m, see nn::latent_router_options() and nn::ShallowExperts. The router starts at 0. An input is
/// an image of one channel and one row, of d numbers. With one expert it is the vanilla network.
class LatentMoE : public OneLayerModel<LatentMoEConfig> {
 public:
  /// Draws the initial values from `seed`.
  LatentMoE(LatentMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  Json config() const override {
    Json config = OneLayerModel::config();
    config["routing"] = nn::latent_routing_name(moe->options());
    return config;
  }
  std::vector<int64_t> input_shape() const override { return {1, 1, config_.width}; }
  SettingPaths setting_paths() const override {
    return {.router_name = "routing", .image_size = "width", .kept_experts = "kept_experts"};
  }
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;

  /// Returns experts of the network's kind, drawn from `generator`, of other numbers M and J.
  nn::ShallowExperts draw_experts(int64_t num_experts, int64_t num_neurons,
                                  const at::Generator& generator) const;
  /// Puts `made` in the place of all experts; expert m routes by row m of router_Md [M, d].
  void replace_experts(const nn::ShallowExperts& made, const at::Tensor& router_Md);

  /// Returns "neuron" [K, J, d] and "router" [K, 1, d] of the experts that exist.
  std::map<std::string, at::Tensor> weight_directions() const override {
    return {{"neuron", experts->w.detach()}, {"router", router_directions()}};
  }

  nn::ShallowExperts experts{nullptr};
};

}  // namespace moesaic
