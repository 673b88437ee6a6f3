// SPDX-License-Identifier: Apache-2.0
// "Towards Understanding Mixture of Experts in Deep Learning": the data of definition 3.1, the
// networks of section 3.2 and those that route whole images, section 6.2.
#pragma once

#include "moesaic/data/dataset.h"
#include "moesaic/models/one_layer.h"
#include "moesaic/models/router_config.h"
#include "moesaic/nn/batch_shard.h"
#include "moesaic/nn/image_network.h"
#include "moesaic/ops/activation.h"

namespace moesaic {

struct ClusterMoEConfig;

namespace nn {

/// Two-layer convolutional networks with a fixed second layer (clusters paper, eq. 3.1), with
/// parameters `w` [K, d, J] and `b` [K, J], undefined without biases, see filter_experts() of ops.
/// A neuron is a filter.
class FilterExpertsImpl : public RoutedExperts {
 public:
  /// Makes so many experts, whose initial values are drawn from `generator`.
  FilterExpertsImpl(const ClusterMoEConfig& config, int64_t experts,
                    const at::Generator& generator);

  /// Computes x_TPd [T, P, d] -> [A, C].
  ExpertRows rows_of(const at::Tensor& x_TPd, const Routing& routing) const override;
  int64_t num_experts() const override { return w.size(0); }
  int64_t num_outputs() const override { return num_outputs_; }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(num_patches_ * w.size(1) * w.size(2));
  }
  ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const override {
    return {.hidden = {values(w)[slot].t()}, .others = {}};
  }
  ExpertsScript script_source() const override;

  at::Tensor w, b;

 private:
  int64_t num_patches_, num_outputs_;
  Activation activation_;
};
TORCH_MODULE(FilterExperts);

/// Experts that are separate convolutional networks (clusters paper, section 6.2), children "0" to
/// "K-1". Batch normalisation of an expert sees only the images of that expert. A neuron is an
/// output channel of a convolution, or an output of a linear layer.
class ImageExpertsImpl : public Experts, public DataParallelModule {
 public:
  /// `network` is one of image_network_names(). Throws Error (usage) for another name.
  ImageExpertsImpl(const std::string& network, int64_t experts, const ImageNetworkOptions& options,
                   const at::Generator& generator);

  /// Computes images rows_ACHW [A, C, S, S] -> outputs [A, classes] and embeddings [A, d']. Waits
  /// for the offsets on the host; an expert without images is not computed.
  ExpertRows compute(const at::Tensor& rows_ACHW, const Routing& routing,
                     const at::Generator& random) override;
  ExpertParallel expert_parallel() const override { return ExpertParallel::all_to_all; }
  bool has_expert_names() const override { return true; }
  void keep(const std::vector<int64_t>& slots) override;
  int64_t num_experts() const override { return static_cast<int64_t>(networks_.size()); }
  int64_t num_outputs() const override { return networks_.front()->head->options.out_features(); }
  double flops_per_row() const override { return networks_.front()->flops(); }
  ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const override;
  ExpertsScript script_source() const override;

  /// Returns the network of an expert by its slot.
  const std::shared_ptr<ImageNetwork>& network(int64_t slot) const {
    return networks_.at(static_cast<size_t>(slot));
  }

 private:
  using Networks = std::vector<std::shared_ptr<ImageNetwork>>;

  /// Networks of other processes' experts keep no memory meanwhile.
  void keep_local(const std::vector<int64_t>& slots) override;
  void gather(const ProcessGroup& group) override;
  /// Makes these the children, named by their place from `first` on.
  void set_networks(Networks networks, int64_t first = 0);

  Networks networks_;
  Networks all_;  ///< While experts are shared out.
};
TORCH_MODULE(ImageExperts);

}  // namespace nn

inline constexpr double kMaxClusters = 1024;
/// Bounds within which cubes of products stay in the range of float32.
inline constexpr double kMinNumber = 1e-6, kMaxNumber = 1e6;

/// Settings of data of format "clusters" (clusters paper, definition 3.1).
struct ClusterMixtureConfig {
  static constexpr const char* kKey = "clusters";  ///< Key of a description.
  int64_t num_clusters = 4, num_patches = 4, width = 50;
  std::vector<double> alpha = {0.5, 2.0}, beta = {1.0, 2.0}, gamma = {0.5, 3.0};
  double noise = 1.0;
  double scale = 10.0;
  bool shuffle = true;
  int64_t num_train = 16000, num_test = 16000;
  bool endless = false;
  int64_t seed = 1;
};
void describe(auto& f, ClusterMixtureConfig& c) {
  f("num_clusters", c.num_clusters, "number of clusters (K), each with a signal and a centre",
    between(2, kMaxClusters), renamed_from("clusters"));
  f("num_patches", c.num_patches,
    "number of patches per input (P): a signal, a centre, another cluster's signal, noise",
    between(3, 4096), renamed_from("patches"));
  f("width", c.width,
    "patch dimension (d), in which the signals and centres of all clusters are orthogonal",
    between(4, 65536));
  f("alpha", c.alpha, "range of the signal's strength", between(kMinNumber, kMaxNumber));
  f("beta", c.beta, "range of the centre's strength", between(kMinNumber, kMaxNumber));
  f("gamma", c.gamma, "range of the other cluster's signal's strength",
    between(kMinNumber, kMaxNumber));
  f("noise", c.noise,
    "noise level (sigma_p), whose square divided by the patch dimension is the variance of a noise "
    "patch's elements",
    between(0.0, kMaxNumber));
  f("scale", c.scale, "factor on every element of the finished inputs",
    between(kMinNumber, kMaxNumber));
  f("shuffle", c.shuffle,
    "random order of the patches of an example; false: signal, centre, other signal, noise");
  f("num_train", c.num_train,
    "number of training examples; of an endless stream those of one epoch", between(1, 1e8),
    renamed_from("train"));
  f("num_test", c.num_test, "number of test examples", between(1, 1e8), renamed_from("test"));
  f("endless", c.endless,
    "endless stream of new training examples: epoch e begins at example e * num_train; the test "
    "split is fixed");
  f("seed", c.seed, "seed of signals, centres and examples", at_least(0));
}
/// Checks that ranges are two numbers in order and that 2 K vectors fit into d dimensions.
ConfigProblem config_problem(const ClusterMixtureConfig& config);

/// The signals v_k and centres c_k of the clusters, all orthonormal, float32.
struct ClusterSignals {
  at::Tensor v_Kd, c_Kd;
};
/// Returns signals and centres drawn from the seed of `config`.
ClusterSignals cluster_signals(const ClusterMixtureConfig& config);

/// Generates examples of definition 3.1, inputs [N, 1, P, d] with labels (y + 1) / 2 and clusters k
/// as groups. k, k' != k, y and eps = +-1, alpha, beta, gamma are uniform in their ranges; the
/// patches y alpha v_k, beta c_k, eps gamma v_k' and P - 3 of N(0, sigma_p^2 / d I) in random
/// order, times `scale`; without `shuffle` in the order of this list. `split` is "train" or "test";
/// both share signals and centres. Example i depends on seed, split and i only. Returns `count` of
/// them from index `first` on.
DatasetInputs cluster_examples(const ClusterMixtureConfig& config, const ClusterSignals& signals,
                               const std::string& split, int64_t first, int64_t count);

/// Router of a network that routes each image as one token; top-1 by default (clusters paper,
/// section 3).
struct ImageTokenRouterConfig : RouteOptions {
  /// One expert per image.
  ImageTokenRouterConfig() { k = 1; }

  std::string noise = "uniform";
  double noise_scale = 1.0;
  bool noise_in_evaluation = false, gate_noise = true;
  bool mean_replacement = false;
};
void describe(auto& f, ImageTokenRouterConfig& c) {
  describe(f, static_cast<RouteOptions&>(c));
  f("dispatcher", c.capacity, "dispatch of images to the experts");
  f("group_size", c.group_size,
    "number of images that share a capacity, or that experts choose among; the last group of a "
    "batch may be smaller; 0: the whole batch",
    between(0, kMaxTokens));
  f("noise", c.noise, "distribution of the noise added to the logits", one_of(noise_kind_names()));
  f("noise_scale", c.noise_scale,
    "noise level; uniform: the upper end of its range from 0; gaussian: the number of experts "
    "times its standard deviation; 0: no noise",
    at_least(0.0));
  f("noise_in_evaluation", c.noise_in_evaluation, "use of the noise on logits in evaluation too");
  f("gate_noise", c.gate_noise,
    "use of the noise in gates too; false: it only affects which expert is selected");
  f("kept_experts", c.kept, "indices of the experts left after pruning; empty: all");
  f("mean_replacement", c.mean_replacement, kMeanReplacementHelp, renamed_from("stand_ins"));
}

inline constexpr char kClusterMoE[] = "cluster-moe";

/// Settings of a cluster-moe's router.
struct ClusterRouterConfig : ImageTokenRouterConfig {
  /// Takes the defaults of the released code.
  ClusterRouterConfig() {
    gate = Gate::logit;
    noise_in_evaluation = true;
  }

  int64_t width = 0;
};
void describe(auto& f, ClusterRouterConfig& c) {
  describe(f, static_cast<ImageTokenRouterConfig&>(c));
  f("width", c.width,
    "number of elements of a piece of a patch; the router's input is the sum of all pieces; 0: "
    "whole patches",
    between(0, 65536));
}

/// Settings of a cluster-moe.
struct ClusterMoEConfig {
  std::string name = kClusterMoE;
  int64_t num_patches = 4, width = 50, num_classes = 2, num_experts = 8, num_filters = 16;
  std::string activation = "cubic";
  std::string init = "uniform";
  double init_scale = 0.001;
  bool bias = true, has_scalar_output = false;
  std::optional<ClusterRouterConfig> router = ClusterRouterConfig{};
};
void describe(auto& f, ClusterMoEConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kClusterMoE}));
  f("num_patches", c.num_patches, "number of patches per input (P)", between(1, 4096),
    renamed_from("patches"));
  f("width", c.width, "patch dimension (d)", between(1, 65536));
  f("num_classes", c.num_classes, "number of outputs of an expert, unless has_scalar_output is set",
    between(1, 65536), renamed_from("classes"));
  f("num_experts", c.num_experts, "number of experts (M), two-layer convolutional networks",
    between(1, 4096), renamed_from("experts"));
  f("num_filters", c.num_filters, "number of filters of an expert (J), divided among its outputs",
    between(1, 1048576), renamed_from("filters"));
  f("activation", c.activation, "activation function of the filters",
    one_of(std::vector<std::string>(kActivationNames.begin(), kActivationNames.end())));
  f("init", c.init, "distribution of the initial filters; the router starts at 0",
    one_of({"uniform", "normal"}));
  f("init_scale", c.init_scale,
    "scale of the initial filters; uniform: half width of the distribution around 0, times the "
    "square root of the patch dimension; normal: standard deviation",
    between(1e-12, 1e6));
  f("bias", c.bias, "presence of a bias in each filter");
  f("has_scalar_output", c.has_scalar_output,
    "single output f per expert, for two classes with logits 0 and f (logistic loss)",
    renamed_from("scalar"));
  f("router", c.router,
    "top-1 (switch) router over the sum of the patches, or of their pieces; null: a single expert "
    "without a router");
}
/// Checks that outputs divide filters, that scalar experts have two classes, and that pieces divide
/// a patch; one expert without a router.
ConfigProblem config_problem(const ClusterMoEConfig& config);

/// F(x) = gate_m f_m(x) with m = argmax h + r, h(x) = sum over patches p of Theta^T x^(p) and noise
/// r; f_m is eq. 3.1 for each class, or as printed a scalar whose sign is the class. Without a
/// router F = f_1. An input is an image of one channel whose P rows are its patches.
class ClusterMoE : public OneLayerModel<ClusterMoEConfig> {
 public:
  /// Draws the initial values from `seed`.
  ClusterMoE(ClusterMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  void reset_head(int64_t classes) override {
    fail_usage(
        "{}: the experts have a fixed second layer, so the model cannot get a new head for {} "
        "classes; leave new_head out",
        config_.name, classes);
  }
  std::vector<int64_t> input_shape() const override {
    return {1, config_.num_patches, config_.width};
  }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    return moe.is_empty() ? experts->flops_per_row()
                          : OneLayerModel::flops_per_image(rows_per_token);
  }
  SettingPaths setting_paths() const override;
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;
  /// Returns "expert", the filters [K, J, d], and "router", the router's rows [E, 1, d].
  std::map<std::string, at::Tensor> weight_directions() const override;

  nn::FilterExperts experts{nullptr};  ///< The experts of `moe` where there is one.

 private:
  /// Inputs with what is derived from them once.
  struct RouterInputCache {
    at::Tensor inputs, sums;  ///< `sums` over the router's patches, [B, width of its input].
    uint64_t version = 0;
  };
  at::Tensor logits_of(const at::Tensor& y_Bo) const {
    return config_.has_scalar_output ? at::cat({at::zeros_like(y_Bo), y_Bo}, 1) : y_Bo;
  }
  at::Tensor router_input(const at::Tensor& images_BCHW);
  at::Tensor patch_sums(const at::Tensor& images_BCHW) const;

  RouterInputCache cache_;  ///< Of use since a full batch is the same tensor at every step.
};

inline constexpr char kImageMoE[] = "image-moe";

/// Settings of an image-moe's router.
struct ImageRouterConfig : ImageTokenRouterConfig {
  int64_t patch_size = 4;
};
void describe(auto& f, ImageRouterConfig& c) {
  f("patch_size", c.patch_size, "side in pixels of the squares whose sum is the router's input",
    between(1, 1024));
  describe(f, static_cast<ImageTokenRouterConfig&>(c));
}

/// Settings of an image-moe.
struct ImageMoEConfig {
  std::string name = kImageMoE;
  std::string expert = "cnn";
  int64_t num_experts = 4;
  int64_t image_size = 32, channels = 3, num_classes = 10;
  double width = 1.0;
  std::optional<ImageRouterConfig> router = ImageRouterConfig{};
};
void describe(auto& f, ImageMoEConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kImageMoE}));
  f("expert", c.expert, "network architecture of an expert", one_of(nn::image_network_names()));
  f("num_experts", c.num_experts, "number of experts (M), of which one sees an image",
    between(1, 1024), renamed_from("experts"));
  f("image_size", c.image_size, "height and width of the images, in pixels", between(4, 1024));
  f("channels", c.channels, "number of image channels", between(1, 16));
  f("num_classes", c.num_classes, "number of outputs of an expert", between(1, 65536),
    renamed_from("classes"));
  f("width", c.width, "width multiplier on an expert's usual channels, rounded",
    between(0.01, 16.0));
  f("router", c.router,
    "linear top-1 (switch) router over the sum of the image's squares; null: a single expert "
    "without a router");
}
/// Checks that squares fill the image and that there is one expert without a router.
ConfigProblem config_problem(const ImageMoEConfig& config);

/// F(x) = gate_m f_m(x) with m = argmax h + r and h(x) = sum over the image's squares s of Theta^T
/// x^(s) + b; the f_m are separate networks, and only f_m is computed. Without a router F = f_1.
/// The router's `weight` is [M, C s s + 1], the bias in the last column. Batch normalisation of an
/// expert sees only the images of that expert. The embedding (pre_logits) is the input of the head
/// of the expert that computed the image.
class ImageMoE : public OneLayerModel<ImageMoEConfig> {
 public:
  /// Draws the initial values from `seed`.
  ImageMoE(ImageMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  void reset_head(int64_t classes) override;
  std::vector<int64_t> input_shape() const override {
    return {config_.channels, config_.image_size, config_.image_size};
  }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    return moe.is_empty() ? experts->flops_per_row()
                          : OneLayerModel::flops_per_image(rows_per_token);
  }
  SettingPaths setting_paths() const override;
  /// A router sends each expert another number of images at every step.
  bool wants_cudnn_benchmark() const override { return moe.is_empty(); }
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;

  nn::ImageExperts experts{nullptr};  ///< The experts of `moe` where there is one.
};

}  // namespace moesaic
