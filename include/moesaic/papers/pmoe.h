// SPDX-License-Identifier: Apache-2.0
// "Patch-level Routing in Mixture-of-Experts is Provably Sample-efficient for Convolutional Neural
// Networks": the data of section 4.2, patches that are unit vectors, one of which determines the
// class; the networks of section 3.1; and wide residual networks whose last convolution is a
// patch-level mixture (section 5.2 and appendix L).
#pragma once

#include "moesaic/data/dataset.h"
#include "moesaic/models/one_layer.h"
#include "moesaic/nn/batch_shard.h"
#include "moesaic/nn/image_network.h"

namespace moesaic {

struct PMoEConfig;

namespace nn {

/// Experts of the patch-level mixture of convolutional networks (pMoE paper, eqs. 1 and 23), for
/// one patch: output i is sum_r a_{r,s,i} ReLU(<w_{r,s}, x>), without biases. Parameter `w` [K, d,
/// h]; buffer `a` [K, h, o], which is fixed. There is one output for two classes, else one each.
class PatchExpertsImpl : public RoutedExperts {
 public:
  /// Draws the initial values from `generator`.
  PatchExpertsImpl(const PMoEConfig& config, const at::Generator& generator);

  /// Computes patches x_Td [T, d] -> [A, o].
  ExpertRows rows_of(const at::Tensor& x_Td, const Routing& routing) const override;
  int64_t num_experts() const override { return w.size(0); }
  int64_t num_outputs() const override { return a.size(2); }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(w.size(2) * (w.size(1) + a.size(2)));
  }
  ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const override {
    return {.hidden = {values(w)[slot].t()}, .others = {}};
  }
  ExpertsScript script_source() const override;

  at::Tensor w, a;
};
TORCH_MODULE(PatchExperts);

/// Sizes of MapExperts.
struct MapExpertsOptions {
  int64_t num_experts = 1;                 ///< Number of experts, K.
  int64_t channels = 0, side = 0;          ///< Shape of the feature map, C and S.
  int64_t patch = 1;                       ///< Side of a patch, which divides that of the map.
  int64_t num_outputs = 0;                 ///< Channels that an expert makes, o.
  int64_t kernel = 1;                      ///< Side of its convolution's kernel, odd.
  double epsilon = 1e-3, momentum = 0.01;  ///< Options of the batch normalisation.

  /// Returns the number of a map's patches.
  int64_t num_patches() const { return side / patch * (side / patch); }
  /// Returns the side of what a patch reaches in the convolution's output.
  int64_t window() const { return patch + kernel - 1; }
};

/// Experts of WRN-pMoE (pMoE paper, section 5.2). An expert gets the map with its selected patches,
/// each times its gate, and zeros in place of all others; it computes batch normalisation, ReLU and
/// a convolution with biases, whose border is zeros.
///
/// Patches that an expert did not select have the same value at every position after the ReLU. The
/// convolution is that of this value, which all images share, plus what the selected patches add.
/// Routings are those of expert choice by image: every expert has as many patches of each image. A
/// token is a patch as from patches_of(), images one after another. Parameters `weight` and `bias`
/// [K, C] of the normalisation, `w` [K, o, C, kernel, kernel], `b` [K, o]; buffers `running_mean`
/// and `running_var` [K, C].
class MapExpertsImpl : public Experts, public DataParallelModule {
 public:
  /// Draws the initial values from `generator`.
  MapExpertsImpl(const MapExpertsOptions& options, const at::Generator& generator);

  /// Computes patches x_Td [T, C p p] -> the experts' maps side by side, [T, K o p p].
  std::optional<ExpertsOutput> fused(const at::Tensor& x_Td, const Routing& routing,
                                     const at::Generator& random) override;
  /// Computes what each selected patch, times its gate and by the running statistics, adds to the
  /// map without it: windows [A, o q q] of side q = patch + kernel - 1.
  ExpertRows compute(const at::Tensor& rows_Ad, const Routing& routing,
                     const at::Generator& random) override;
  int64_t num_experts() const override { return w.size(0); }
  ExpertParallel expert_parallel() const override { return ExpertParallel::all_gather; }
  int64_t num_outputs() const override {
    return options_.num_outputs * options_.window() * options_.window();
  }
  int64_t num_token_outputs() const override {
    return num_experts() * options_.num_outputs * options_.patch * options_.patch;
  }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(options_.patch * options_.patch * w[0].numel());
  }
  ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const override {
    return {.hidden = {values(w)[slot].flatten(1)}, .others = {}};
  }
  ExpertsScript script_source() const override;

  /// Returns the options as given.
  const MapExpertsOptions& options() const { return options_; }

  at::Tensor weight, bias, w, b, running_mean, running_var;

 private:
  /// Mean and variance over a whole map, [K, C].
  struct Statistics {
    at::Tensor mean, var;
  };
  /// Returns the selected patches times their gates, [K, R, C, p p].
  at::Tensor gated_rows(const at::Tensor& rows_Ad, const Routing& routing) const;
  /// Returns the statistics of maps of `images` images; training updates the running ones.
  Statistics statistics(const at::Tensor& rows_KRCp, int64_t images);
  /// What is behind ReLU: rest_KC [K, C] where nothing was selected, and how much more the selected
  /// patches have, [K, R, C, p p].
  struct Activations {
    at::Tensor more_KRCp, rest_KC;
  };
  Activations activate(const at::Tensor& rows_KRCp, const Statistics& statistics) const;
  /// Convolves rows_KRCp by its expert -> windows [K, R, q, q, o], without bias.
  at::Tensor convolve(const at::Tensor& rows_KRCp) const;

  MapExpertsOptions options_;
};
TORCH_MODULE(MapExperts);

}  // namespace nn

/// Data of the pMoE paper's theory, section 4.2.
struct PatchPatternsConfig {
  static constexpr const char* kKey = "patterns";  ///< Key of a description.
  int64_t width = 50, num_patches = 16, num_sets = 8, threshold = 4;
  double delta_d = 0.0, delta_r = 0.6;
  int64_t num_train = 1000, num_test = 1000, seed = 1;
};
void describe(auto& f, PatchPatternsConfig& c) {
  f("width", c.width, "patch dimension (d)", between(4, 65536));
  f("num_patches", c.num_patches, "number of patches per example (n)", between(2, 65536),
    renamed_from("patches"));
  f("num_sets", c.num_sets, "number of sets of patterns that do not determine the class (p)",
    between(3, 65536), renamed_from("sets"));
  f("threshold", c.threshold,
    "threshold (l*); in each example l* - 1 other patches are closer to one of the two "
    "class-deciding patterns, drawn at random, than to the other",
    between(1, 65536));
  f("delta_d", c.delta_d, "inner product of the two patterns that determine the class", above(-1.0),
    below(1.0));
  f("delta_r", c.delta_r,
    "largest absolute inner product of a pattern that determines the class and one that does not",
    between(0.0, 1.0));
  f("num_train", c.num_train, "number of examples in an epoch of the endless training split",
    at_least(1), renamed_from("train"));
  f("num_test", c.num_test, "number of test examples", between(1, 10000000), renamed_from("test"));
  f("seed", c.seed, "seed of all examples", at_least(0));
}
/// Checks that so many patches are left to be close, and that patterns can be close: 2 delta_r >
/// (1 - delta_d) / 2, with |q| = 1.
ConfigProblem config_problem(const PatchPatternsConfig& config);

/// What the data are made of: o1 and o2, and the centres of the sets S_1, ..., S_p. The first half
/// of these, where there are close patterns, are close in turn to o1 and to o2: <o1 - o2, q> = +-2
/// delta_r. The others have the same product with both.
struct PatternSets {
  at::Tensor deciding_2d;  ///< float32
  at::Tensor centre_pd;    ///< float32
  int64_t num_close = 0;   ///< Number of sets that are close.
  double radius = 0.0;     ///< Radius of each set: sqrt((1 - delta_r^2) / (d p^2)) / 2.
};
/// Returns the patterns drawn from the seed of `config`.
PatternSets pattern_sets(const PatchPatternsConfig& config);

/// Generates examples `first` to `first + count - 1` of a split, inputs [N, 1, n, d] of unit
/// vectors. Labels are 0 with o1 (y = +1) and 1 with o2 (y = -1), in turn; groups are the places of
/// the patches that are o1 or o2. Places are random; l* - 1 patches are of sets that are close to
/// one of o1 and o2, the same one for all of them, chosen at random; the others are of sets that
/// are not. Example i depends on seed, split and i only. `sets` are pattern_sets(config).
DatasetInputs patch_patterns(const PatchPatternsConfig& config, const PatternSets& sets,
                             const std::string& split, int64_t first, int64_t count);

inline constexpr char kPMoE[] = "pmoe";

/// Settings of the router of a pmoe or wrn-pmoe.
struct PMoERouterConfig {
  int64_t num_selected_patches = 6;
  std::string gate = "softmax_selected";
  double init_std = 1e-4;
  std::vector<int64_t> kept_experts;
};
void describe(auto& f, PMoERouterConfig& c) {
  f("num_selected_patches", c.num_selected_patches, "number of patches per image and expert (l)",
    between(1, 65536), common, renamed_from("selected"));
  f("gate", c.gate,
    "gate of a selected patch: softmax over the expert's selected patches (softmax_selected, joint "
    "training), over all (softmax_tokens), or 1 (one, separate training)",
    one_of({"softmax_selected", "softmax_tokens", "one"}), common);
  f("init_std", c.init_std, "standard deviation of the router's initial values", at_least(0.0));
  f("kept_experts", c.kept_experts, "indices of the experts left after pruning; empty: all");
}

/// Settings of a pmoe.
struct PMoEConfig {
  std::string name = kPMoE;
  int64_t channels = 1;
  Size2d image_size = 112, patch_size = 28;
  int64_t num_classes = 2, num_experts = 8, num_neurons = 5;
  std::string divisor = "patches", output = "normal";
  double init_std = 0.01;
  std::optional<PMoERouterConfig> router = PMoERouterConfig{};

  /// Returns the number of an image's patches, n.
  int64_t num_patches() const {
    return image_size.height / patch_size.height * (image_size.width / patch_size.width);
  }
  /// Returns whether an expert adds to a class of its own, in equal parts in turn, or, with one
  /// output, the first half adds and the other subtracts; else output weights are N(0, 1).
  bool is_output_by_class() const { return output == "by_class"; }
  /// Returns the number of a patch's values, d.
  int64_t width() const { return channels * patch_size.height * patch_size.width; }
  /// Returns D: n, or l, which is n without a router.
  double divisor_value() const {
    return static_cast<double>(divisor == "selected" && router ? router->num_selected_patches
                                                               : num_patches());
  }
};
void describe(auto& f, PMoEConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kPMoE}));
  f("channels", c.channels, "number of image channels", between(1, 4096));
  f("image_size", c.image_size, "side of the images in pixels, or [height, width]",
    between(1, 65536));
  f("patch_size", c.patch_size, "side of a patch in pixels, or [height, width]", between(1, 65536));
  f("num_classes", c.num_classes,
    "number of classes; 2: one output, whose sign is the class; more: one output per class",
    between(2, 4096), renamed_from("classes"));
  f("num_experts", c.num_experts, "number of experts (k)", between(1, 4096), common,
    renamed_from("experts"));
  f("num_neurons", c.num_neurons, "number of neurons per expert", between(1, 65536), common,
    renamed_from("hidden"));
  f("divisor", c.divisor,
    "divisor of an expert's sum: the number of selected patches (eq. 1) or of all patches",
    one_of({"selected", "patches"}));
  f("output", c.output,
    "fixed output weights: normal, or by_class: each expert adds to its class, with two classes "
    "+1 and -1",
    one_of({"normal", "by_class"}));
  f("init_std", c.init_std, "standard deviation of the neurons' initial values", at_least(0.0));
  f("router", c.router, "router of each expert; null: a single expert with all patches, the CNN",
    common);
}
/// Checks that patches divide an image and that an expert selects no more than there are; classes
/// share out experts whose outputs are by class; one expert without a router.
ConfigProblem config_problem(const PMoEConfig& config);

/// f_i(x) = sum_s sum_r a_{r,s,i} / D sum_{j in J_s} ReLU(<w_{r,s}, x_j>) G_{j,s} (model (1), eq.
/// 23) with D = l or n: each expert selects l of an image's n patches. Without a router it is the
/// CNN of eq. 5. For two classes there is one f, with logits f / 2 and -f / 2, so that the
/// cross-entropy is the logistic loss of eq. 2 with y = +1 for class 0.
class PMoE : public OneLayerModel<PMoEConfig> {
 public:
  /// Draws the initial values from `seed`.
  PMoE(PMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  /// Computes images that are cut into patches already. Outputs f are the pre_logits [B, o].
  ModelOutput forward_patches(const at::Tensor& x_Bnd, const at::Generator& random) const;
  std::vector<MoEBlock> moe_blocks() const override {
    if (moe.is_empty()) return {};
    return {{.block = 0,
             .layer = moe,
             .num_groups = config_.is_output_by_class() ? config_.num_classes : 0}};
  }
  std::vector<int64_t> input_shape() const override {
    return {config_.channels, config_.image_size.height, config_.image_size.width};
  }
  int64_t tokens_per_image() const override { return config_.num_patches(); }
  std::optional<PatchTokens> patch_tokens() const override {
    return PatchTokens{{config_.image_size.height / config_.patch_size.height,
                        config_.image_size.width / config_.patch_size.width}};
  }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    if (config_.router) return OneLayerModel::flops_per_image(rows_per_token);
    return static_cast<double>(config_.num_patches()) * experts->flops_per_row();
  }
  SettingPaths setting_paths() const override {
    return {.rows_per_expert = "router.num_selected_patches",
            .classes = "num_classes",
            .image_size = "image_size",
            .channels = "channels",
            .kept_experts = "router.kept_experts"};
  }
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;
  /// Returns "neuron" [K, h, d] and "router" [K, 1, d] of the experts that exist.
  std::map<std::string, at::Tensor> weight_directions() const override;

  nn::PatchExperts experts{nullptr};  ///< The experts of `moe` where there is one.

 private:
  std::shared_ptr<torch::nn::Module> mixture_;  ///< Holds them, by whose names files have them.
};

inline constexpr char kWrnPMoE[] = "wrn-pmoe";

/// Settings of a wrn-pmoe's mixture.
struct WrnMixtureConfig {
  int64_t num_experts = 4, patch_size = 1, kernel_size = 1;
  PMoERouterConfig router = {.num_selected_patches = 16, .gate = "softmax_tokens"};
};
void describe(auto& f, WrnMixtureConfig& c) {
  f("num_experts", c.num_experts,
    "number of experts (k), among which the last group's channels are divided", between(1, 4096),
    common, renamed_from("experts"));
  f("patch_size", c.patch_size, "side of a patch, in pixels of the feature map", between(1, 1024),
    common);
  f("kernel_size", c.kernel_size, "kernel size of an expert's convolution, an odd number",
    between(1, 15), renamed_from("kernel"));
  f("router", c.router, "router of each expert");
}

/// Settings of a wrn-pmoe.
struct WrnPMoEConfig {
  std::string name = kWrnPMoE;
  int64_t channels = 3, image_size = 32, num_classes = 10, num_blocks = 1;
  double widen_factor = 10.0;
  std::optional<WrnMixtureConfig> moe = WrnMixtureConfig{};

  /// Returns the side of the last feature map: two groups halve it.
  int64_t map_size() const { return (image_size + 3) / 4; }
};
void describe(auto& f, WrnPMoEConfig& c) {
  f("name", c.name, "name of the model family", required, one_of({kWrnPMoE}));
  f("channels", c.channels, "number of image channels", between(1, 4096));
  f("image_size", c.image_size, "side of the images, in pixels", between(4, 4096));
  f("num_classes", c.num_classes,
    "number of classes; 2: one output, whose sign is the class; more: one output per class",
    between(2, 65536), renamed_from("classes"));
  f("num_blocks", c.num_blocks,
    "number of residual blocks per group: the network has 6 * num_blocks + 4 layers",
    between(1, 64), renamed_from("blocks"));
  f("widen_factor", c.widen_factor,
    "widening factor on the groups' 16, 32 and 64 channels, rounded down", between(0.0625, 64.0),
    common, renamed_from("widening"));
  f("moe", c.moe,
    "mixture of experts in place of the last group's second convolution; null: the plain WRN",
    common);
}
/// Checks that patches divide the feature map, that there are as many as an expert selects, that
/// experts share out the channels, and that the kernel is odd.
ConfigProblem config_problem(const WrnPMoEConfig& config);

/// A wide residual network of 6 * num_blocks + 4 layers. With `moe`, its last group has no
/// residual: behind a convolution of stride 2 each expert selects l patches of the map and makes an
/// equal share of the channels (nn::MapExperts). Batch normalisation, ReLU, the mean over the map
/// and a linear layer follow. For two classes there is one output f, and the logits are f / 2 and
/// -f / 2, so that the cross-entropy is the logistic loss with y = +1 for class 0. Before the last
/// normalisation the channels of pruned experts are 0.
class WrnPMoE : public OneLayerModel<WrnPMoEConfig> {
 public:
  /// Draws the initial values from `seed`.
  WrnPMoE(WrnPMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  void reset_head(int64_t classes) override;
  std::vector<int64_t> input_shape() const override {
    return {config_.channels, config_.image_size, config_.image_size};
  }
  int64_t tokens_per_image() const override {
    return moe.is_empty() ? 0 : experts->options().num_patches();
  }
  std::optional<PatchTokens> patch_tokens() const override {
    if (moe.is_empty()) return std::nullopt;
    return PatchTokens{{config_.map_size() / config_.moe->patch_size}};
  }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override {
    double flops = trunk->maps().flops + 2.0 * static_cast<double>(head->weight.numel());
    if (!moe.is_empty()) flops += layer_flops(moe_blocks()[0], tokens_per_image(), rows_per_token);
    return flops;
  }
  SettingPaths setting_paths() const override {
    return {.rows_per_expert = "moe.router.num_selected_patches",
            .classes = "num_classes",
            .image_size = "image_size",
            .channels = "channels",
            .kept_experts = "moe.router.kept_experts"};
  }
  bool wants_cudnn_benchmark() const override { return true; }
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;

  nn::WideResNet trunk{nullptr};
  nn::MapExperts experts{nullptr};  ///< The experts of `moe`; null without it.
  nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear head{nullptr};

 private:
  /// Returns the channels of all experts at every position, [T, C, p p], 0 for pruned ones.
  at::Tensor all_channels(const at::Tensor& y_Td) const;
};

}  // namespace moesaic
