// SPDX-License-Identifier: Apache-2.0
// "Learning in Gated Neural Networks": the data of eq. 1; the mixture as a network of one output,
// E[y | x]; the errors of section 4; a classifier of sequences by a GRU that is a mixture of
// experts.
#pragma once

#include <torch/nn/modules/linear.h>

#include "moesaic/data/dataset.h"
#include "moesaic/models/one_layer.h"

namespace moesaic {

/// Link function g of a gated mixture: an expert outputs g(<a, x>).
enum class Link { identity, relu, leaky_relu, sigmoid, tanh, softplus, step };

inline constexpr std::array<const char*, 7> kLinkNames = {
    "identity", "relu", "leaky_relu", "sigmoid", "tanh", "softplus", "step"};

namespace nn {

/// How a GRU's candidate state is computed; both agree for reset gates of 0 and 1 only.
enum class GruView {
  mixture,    ///< (1 - r) g(U x + b) + r g(U x + b + W h + c), a mixture of two experts.
  recurrent,  ///< g(U x + b + r (W h + c)), as torch::nn::GRU computes it.
};

inline constexpr std::array<const char*, 2> kGruViewNames = {"mixture", "recurrent"};

/// Gates of a GRU: sigmoid(x), or the threshold 1{x >= 0} (eq. 5), whose gradient is taken to be
/// the sigmoid's (straight through).
enum class GruGates { sigmoid, binary };

inline constexpr std::array<const char*, 2> kGruGatesNames = {"sigmoid", "binary"};

/// Hidden states and gates of every step, [B, T, m].
struct GruStates {
  at::Tensor states, update, reset;
};

/// A gated recurrent unit as a hierarchical mixture of experts of depth 2 ("Learning in Gated
/// Neural Networks", section 2, eq. 5). h_t = (1 - z) h_t-1 + z c_t mixes the former state with the
/// candidate c_t, itself a mixture of forgetting the state and using it. g is tanh.
///
/// The printed W (r h) is no mixture of W h and nothing; PyTorch's r (W h + c) is. Parameters are
/// those of torch::nn::GRU with its names' order (reset, update, candidate), and its update gate is
/// 1 - z: z = sigmoid(-(U_z x + b_z + W_z h + c_z)).
class GruMixtureImpl : public torch::nn::Module {
 public:
  /// Draws the initial values from `generator`.
  GruMixtureImpl(int64_t width, int64_t hidden, GruView view, const at::Generator& generator,
                 GruGates gates = GruGates::sigmoid);

  /// Runs over sequences [B, T, d], from a state of zeros.
  GruStates forward(const at::Tensor& x_BTd) const;

  at::Tensor weight_ih;  ///< [3 m, d]
  at::Tensor weight_hh;  ///< [3 m, m]
  at::Tensor bias_ih;    ///< [3 m]
  at::Tensor bias_hh;    ///< [3 m]

 private:
  GruView view_;
  GruGates gates_;
};
TORCH_MODULE(GruMixture);

}  // namespace nn

inline constexpr const char *kAxes = "axes", *kOrthogonal = "orthogonal", *kRandom = "random";

/// Settings of data of format "gated" (eq. 1).
struct GatedMixtureConfig {
  static constexpr const char* kKey = "mixture";  ///< Key of a description.
  int64_t width = 10, num_experts = 2;
  std::string link = kLinkNames.front();
  double noise = 0.05;
  std::string regressors = kAxes, gates = kAxes;
  double gate_norm = 1.0;
  std::vector<double> gate_biases;
  int64_t num_train = 1024000, num_test = 4096;
  int64_t seed = 1;
};
void describe(auto& f, GatedMixtureConfig& c) {
  f("width", c.width, "input dimension (d)", between(1, 65536));
  f("num_experts", c.num_experts,
    "number of experts (k), each with a regressor; all but the last have gates", between(1, 1024),
    renamed_from("experts"));
  f("link", c.link,
    "link function (g) from the product of the input and a regressor to an output without noise",
    one_of({kLinkNames.begin(), kLinkNames.end()}));
  f("noise", c.noise, "standard deviation of the noise (sigma)", between(0.0, 1e3));
  f("regressors", c.regressors,
    "kind of the regressors, unit vectors: the first axes of the input space, random orthogonal "
    "ones, or random ones, which are not orthogonal",
    one_of({kAxes, kOrthogonal, kRandom}));
  f("gates", c.gates,
    "kind of the gates, vectors of norm gate_norm: along the axes after those of the regressors, "
    "random ones orthogonal to each other and to the regressors, or random ones",
    one_of({kAxes, kOrthogonal, kRandom}));
  f("gate_norm", c.gate_norm, "norm of every gate", between(0.0, 1e3));
  f("gate_biases", c.gate_biases,
    "biases of the gates' logits (appendix A), one for each expert but the last; empty: 0",
    between(-1e3, 1e3));
  f("num_train", c.num_train, "number of examples in an epoch of the endless training split",
    between(1, 1e12), renamed_from("train"));
  f("num_test", c.num_test, "number of test examples", between(1, 1e8), renamed_from("test"));
  f("seed", c.seed, "seed of directions and examples", at_least(0));
}
/// Refuses more directions that are orthogonal than dimensions, and a wrong number of biases.
ConfigProblem config_problem(const GatedMixtureConfig& config);

/// The regressors a_i [k, d], of norm 1, gates w_i [k - 1, d] and their biases b_i [k - 1],
/// float32; w_k = 0, b_k = 0.
struct GatedTruth {
  at::Tensor a_kd, w_kd, b_k;
};
/// Returns regressors and gates drawn from the seed of `config`.
GatedTruth gated_truth(const GatedMixtureConfig& config);

/// Generates examples `first` to `first + count - 1` of a split, inputs [N, 1, 1, d], contiguous
/// along N, with a target each. x ~ N(0, I), z ~ softmax of <w_i, x> + b_i, y = g(<a_z, x>) +
/// noise. Example i depends on seed, split and i only.
DatasetInputs gated_examples(const GatedMixtureConfig& config, const GatedTruth& truth,
                             const std::string& split, int64_t first, int64_t count);

inline constexpr char kGatedMoE[] = "gated-moe";

/// Settings of a gated-moe.
struct GatedMoEConfig {
  std::string name = kGatedMoE;
  int64_t width = 10, num_experts = 2;
  std::string link = kLinkNames.front();
  double noise = 0.05;
  std::string regressors = "random", gates = "zero";
  bool has_gate_biases = false;
};
void describe(auto& f, GatedMoEConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kGatedMoE}));
  f("width", c.width, "input dimension (d)", between(1, 65536));
  f("num_experts", c.num_experts, "number of experts (k)", between(1, 1024),
    renamed_from("experts"));
  f("link", c.link,
    "link function (g) from the product of the input and an expert's regressor to the expert's "
    "output",
    one_of({kLinkNames.begin(), kLinkNames.end()}));
  f("noise", c.noise, "standard deviation (sigma) of the data's outputs, as assumed by losses",
    between(1e-6, 1e3));
  f("regressors", c.regressors,
    "initial regressors: random unit vectors, or the axes of the input space",
    one_of({"random", "axes"}));
  f("gates", c.gates, "initial gates: 0, or random unit vectors", one_of({"zero", "random"}));
  f("has_gate_biases", c.has_gate_biases,
    "biases of the gates (appendix A), which begin at 0 and are trained with them");
}
ConfigProblem config_problem(const GatedMoEConfig& config);

/// The gated mixture of eq. 1: y = sum_i P[z_i = 1 | x] g(<a_i, x>) with P[z_i = 1 | x] =
/// softmax_i(<w_1, x>, ..., <w_k-1, x>, 0). Gates may have biases, <w_i, x> + b_i (appendix A). An
/// input is an image of one channel and one row, of d numbers; all experts compute all of them.
class GatedMoE : public OneLayerModel<GatedMoEConfig> {
 public:
  /// Draws the initial values from `seed`.
  GatedMoE(GatedMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  std::vector<int64_t> input_shape() const override { return {1, 1, config_.width}; }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    return 2.0 * static_cast<double>(num_parameters());
  }
  SettingPaths setting_paths() const override { return {.image_size = "width"}; }
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;
  /// Returns "regressor" [k, 1, d] and "gate" [k - 1, 1, d], or d + 1 with the biases.
  std::map<std::string, at::Tensor> weight_directions() const override;

  /// Returns the link function.
  Link link() const;
  /// Returns gates [k - 1, d], or [k - 1, d + 1] with their biases last: those of inputs (x, 1).
  at::Tensor full_gates() const {
    return gates_bias.defined() ? at::cat({gates, gates_bias.unsqueeze(1)}, 1) : gates;
  }

  at::Tensor regressors;  ///< a_i, [k, d]
  at::Tensor gates;       ///< w_i, [k - 1, d]; w_k = 0
  at::Tensor gates_bias;  ///< b_i, [k - 1], or undefined

 private:
  std::shared_ptr<torch::nn::Module> mixture_;  ///< Holds them, by whose names files have them.
};

inline constexpr char kGru[] = "gru";

/// Settings of a gru.
struct GruConfig {
  std::string name = kGru;
  int64_t num_steps = 28, input_size = 28, hidden_size = 64, num_classes = 10;
  std::string view = nn::kGruViewNames.front(), gates = nn::kGruGatesNames.front();
};
void describe(auto& f, GruConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kGru}));
  f("num_steps", c.num_steps, "number of steps (T): the rows of an image, read one after the other",
    between(1, 4096), renamed_from("steps"));
  f("input_size", c.input_size, "input size (d): the elements of a row", between(1, 65536),
    renamed_from("width"));
  f("hidden_size", c.hidden_size, "size of the hidden state (m)", between(1, 65536),
    renamed_from("hidden"));
  f("num_classes", c.num_classes, "number of outputs of the head", between(1, 65536),
    renamed_from("classes"));
  f("view", c.view, "form of the candidate state: a mixture of experts, or as in torch.nn.GRU",
    one_of({nn::kGruViewNames.begin(), nn::kGruViewNames.end()}));
  f("gates", c.gates,
    "form of the gates: sigmoids, or binary gates (eq. 5) with the sigmoids' gradients",
    one_of({nn::kGruGatesNames.begin(), nn::kGruGatesNames.end()}));
}

/// Reads an image of one channel row by row by an nn::GruMixture; a linear head classifies its last
/// state.
class Gru : public OneLayerModel<GruConfig> {
 public:
  /// Draws the initial values from `seed`.
  Gru(GruConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  void reset_head(int64_t classes) override;
  std::vector<int64_t> input_shape() const override {
    return {1, config_.num_steps, config_.input_size};
  }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    const auto steps = static_cast<double>(config_.num_steps),
               m = static_cast<double>(config_.hidden_size);
    return 2.0 * m *
           (3.0 * steps * (static_cast<double>(config_.input_size) + m) +
            static_cast<double>(config_.num_classes));
  }
  SettingPaths setting_paths() const override {
    return {.classes = "num_classes", .image_size = "num_steps"};
  }
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;
  /// Returns "update" (z) and "reset" (r).
  std::map<std::string, at::Tensor> gates_over_time(const at::Tensor& images_BCHW) const override;

  nn::GruMixture gru{nullptr};
  torch::nn::Linear head{nullptr};
};

/// Errors of section 4 of "Learning in Gated Neural Networks".
struct RecoveryError {
  /// 1 - max over permutations p of min over i of |<a_i, a*_p(i)>|, all of norm 1.
  double regressors = 0.0;
  /// 1 - the min cosine of w_i - w_m with w*_p(i), by the same permutation, where p(m) = k is the
  /// expert whose true gate is 0; 1 for gates of 0. Of more than two experts several permutations
  /// may share the min; then this is of one of them, and means little.
  double gates = 0.0;
  /// max over i of |a_i - a*_p(i)| and of |w_i - w_m - w*_p(i)|, the norm of theorem 3; the former
  /// depends on signs and lengths, which L4 leaves open.
  double regressors_distance = 0.0, gates_distance = 0.0;
};

/// a: [k, d], w: [k - 1, d] or undefined, float64 on the CPU. Biases are one more number of gates.
RecoveryError recovery_error(const at::Tensor& a_kd, const at::Tensor& true_a_kd,
                             const at::Tensor& w_kd, const at::Tensor& true_w_kd);

}  // namespace moesaic
