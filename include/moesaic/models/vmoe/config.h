// SPDX-License-Identifier: Apache-2.0
// Settings of V-MoE, with the names and the nesting of the reference implementation.
#pragma once

#include <map>

#include "moesaic/models/router_config.h"
#include "moesaic/nn/conv_stem.h"
#include "moesaic/nn/encoder_block.h"

namespace moesaic {

// Upper bounds far above any network that fits into memory, see router_config.h.
inline constexpr double kMaxLayers = 1024, kMaxWidth = 1048576;
inline constexpr double kMaxImage = 65536, kMaxChannels = 4096;

/// Settings of `encoder.moe.router.dispatcher`.
struct VMoEDispatcherConfig : CapacityRule {
  bool bfloat16 = false;
};
void describe(auto& f, VMoEDispatcherConfig& c) {
  describe(f, static_cast<CapacityRule&>(c));
  f("bfloat16", c.bfloat16,
    "rounding to bfloat16 of tokens and experts' outputs, and of the gradients of both");
}

/// When a router draws noise: with a generator, always, never.
inline constexpr const char *kNoiseInTraining = "training", *kNoiseAlways = "always",
                            *kNoiseNever = "never";

/// Settings of `encoder.moe.router`.
struct VMoERouterConfig : RouteOptions {
  double noise_std = 0.0;
  std::string noise = kNoiseInTraining;
  double importance_loss_weight = 0.0, load_loss_weight = 0.0, gshard_loss_weight = 0.0;
  bool bfloat16 = false;
};
void describe(auto& f, VMoERouterConfig& c) {
  describe(f, static_cast<RouteOptions&>(c));
  f("noise_std", c.noise_std,
    "scale of the normal noise on logits, whose standard deviation is noise_std / number of "
    "experts of an ensemble member; 0: no noise",
    between(0.0, kMaxNoise));
  f("noise", c.noise,
    "use of the noise on logits: in training alone, in evaluation too (the same noise at every "
    "pass), or never, which also disables the load loss",
    one_of({kNoiseInTraining, kNoiseAlways, kNoiseNever}));
  f("importance_loss_weight", c.importance_loss_weight,
    "weight of V-MoE's importance loss in training, unless a phase's aux_losses sets it; 0: none",
    at_least(0.0));
  f("load_loss_weight", c.load_loss_weight,
    "weight of V-MoE's load loss in training, unless a phase's aux_losses sets it; 0: none",
    at_least(0.0));
  f("gshard_loss_weight", c.gshard_loss_weight,
    "weight of GShard's loss in training, unless a phase's aux_losses sets it; 0: none",
    at_least(0.0));
  VMoEDispatcherConfig dispatcher = {c.capacity, c.bfloat16};
  f("dispatcher", dispatcher, "dispatch of selected tokens to the experts");
  c.capacity = dispatcher;
  c.bfloat16 = dispatcher.bfloat16;
}

/// Settings of `encoder.moe`.
struct VMoEMoeConfig {
  std::vector<int64_t> layers;
  int64_t num_experts = 8;
  int64_t ensemble_size = 1;
  int64_t group_size = 0, num_group_images = 0;
  std::optional<int64_t> mlp_dim;
  std::optional<double> dropout_rate;
  bool split_rngs = true;
  VMoERouterConfig router;
  std::map<std::string, std::vector<int64_t>> kept_experts;
  bool mean_replacement = false;
  std::map<std::string, std::vector<int64_t>> merged_into;
};
void describe(auto& f, VMoEMoeConfig& c) {
  f("layers", c.layers,
    "indices of the blocks (from 0) whose MLP is a mixture of experts; empty: none",
    between(0, kMaxLayers - 1));
  f("num_experts", c.num_experts, "number of experts per layer, of all ensemble members together",
    between(1, kMaxExperts), known_as({"n_experts", "num_local_experts"}));
  f("ensemble_size", c.ensemble_size,
    "number of ensemble members, among which the experts are divided; the network returns a row of "
    "logits per image and member (e3)",
    between(1, kMaxExperts));
  f("group_size", c.group_size,
    "number of tokens in a group, for which an expert's capacity is counted, over all ensemble "
    "members; the last group of a batch may be smaller, with less capacity; 0: the whole batch",
    between(0, kMaxTokens));
  f("num_group_images", c.num_group_images,
    "number of images whose tokens form a group, where group_size is 0; 0: the whole batch",
    between(0, kMaxTokens), renamed_from("group_images"));
  f("mlp_dim", c.mlp_dim, "hidden width of the experts; null: the encoder's",
    between(1, kMaxWidth));
  f("dropout_rate", c.dropout_rate,
    "dropout rate of the experts' hidden units in training; null: the encoder's", at_least(0.0),
    below(1.0));
  f("split_rngs", c.split_rngs,
    "independent initial values for every expert; false: equal initial values for all experts, "
    "whose dropout masks still differ (in google-research/vmoe the masks are equal too)");
  f("router", c.router, "router of the mixture-of-experts layers");
  f("kept_experts", c.kept_experts,
    "indices of the experts left after pruning, by block; missing blocks: all; empty: all of every "
    "block");
  f("mean_replacement", c.mean_replacement, kMeanReplacementHelp, renamed_from("stand_ins"));
  f("merged_into", c.merged_into,
    "kept expert that computes the tokens of each expert after merging, by block; missing blocks: "
    "none was merged; empty: none at all");
}

inline constexpr const char *kLearned = "learned", *kSinCos2d = "sincos2d", *kNoPosition = "none";
inline constexpr double kMaxTemperature = 1e30, kMaxLayerScale = 1e6;

/// Settings of `encoder.position_emb`.
struct VMoEPositionConfig {
  std::string name = kLearned;
  double temperature = 10000.0;
  bool class_token = true;
};
void describe(auto& f, VMoEPositionConfig& c) {
  f("name", c.name,
    "kind of position embedding: learned, sines and cosines of a patch's row and column, or none",
    one_of({kLearned, kSinCos2d, kNoPosition}));
  f("temperature", c.temperature, "longest wavelength of sincos2d divided by 2 pi, in patches",
    above(0.0), at_most(kMaxTemperature));
  f("class_token", c.class_token,
    "row of a learned embedding for the class token; false: patches alone have positions, as in "
    "DeiT3 and with num_registers");
}

/// Settings of `encoder`.
struct VMoEEncoderConfig {
  int64_t num_layers = 4, num_heads = 4, mlp_dim = 384;
  std::string activation = "gelu_tanh";
  double layer_norm_eps = nn::kLayerNormEpsilon;
  std::optional<double> layer_scale;
  double dropout_rate = 0.0, attention_dropout_rate = 0.0, drop_path_rate = 0.0;
  bool attention_qk_norm = false;
  VMoEPositionConfig position_emb;
  VMoEMoeConfig moe;

  /// Returns the hidden width of the experts.
  int64_t expert_dim() const { return moe.mlp_dim.value_or(mlp_dim); }
};
void describe(auto& f, VMoEEncoderConfig& c) {
  f("num_layers", c.num_layers, "number of transformer blocks", between(1, kMaxLayers),
    known_as({"depth", "num_hidden_layers"}));
  f("num_heads", c.num_heads, "number of attention heads", between(1, kMaxWidth),
    known_as({"num_attention_heads"}));
  f("mlp_dim", c.mlp_dim, "hidden width of MLPs and experts", between(1, kMaxWidth),
    known_as({"intermediate_size"}));
  f("activation", c.activation,
    "activation function of MLPs and experts: GELU by tanh, or exact by erf (gelu)",
    one_of({"gelu_tanh", "gelu"}));
  f("layer_norm_eps", c.layer_norm_eps, "epsilon of layer normalization, added to the variance",
    above(0.0), at_most(1.0));
  f("layer_scale", c.layer_scale,
    "initial value of LayerScale, a learned factor for each feature of the outputs of attention "
    "and MLP; null: none",
    between(-kMaxLayerScale, kMaxLayerScale));
  f("dropout_rate", c.dropout_rate,
    "dropout rate in training of embedded tokens, attention outputs and hidden units of MLPs; 0: "
    "none",
    at_least(0.0), below(1.0));
  f("attention_dropout_rate", c.attention_dropout_rate,
    "dropout rate in training of attention weights; 0: none", at_least(0.0), below(1.0));
  f("drop_path_rate", c.drop_path_rate,
    "stochastic depth in training: probability that an image skips the last block's attention, or "
    "its MLP; it grows linearly from 0 in the first block",
    at_least(0.0), below(1.0));
  f("attention_qk_norm", c.attention_qk_norm, "normalization of each head's queries and keys");
  f("position_emb", c.position_emb, "position embedding added to the tokens");
  f("moe", c.moe, "settings of the mixture-of-experts layers");
}

namespace nn {
void describe(auto& f, StemLayer& c) {
  f("channels", c.channels, "number of filters of the convolution", required,
    between(1, kMaxChannels));
  f("stride", c.stride, "stride of the convolution; 2 halves the map", between(1, 2));
  f("norm", c.norm,
    "normalization of the maps; layer_norm: of a pixel over its channels; batch_norm: of a channel "
    "over the batch",
    one_of({"layer_norm", "batch_norm"}));
}
}  // namespace nn

/// Names of the two families of class VMoE, which differ in encoder.moe.ensemble_size.
inline constexpr const char *kVMoE = "vmoe", *kE3 = "e3";

/// Input of the head, see `classifier`.
inline constexpr const char *kPoolToken = "token", *kPoolMean = "gap", *kPoolMap = "map",
                            *kPoolTokenAndMean = "token_gap", *kPoolTokens = "tokens";

/// Settings of a V-MoE or E3.
struct VMoEConfig {
  std::string name = kVMoE;
  Size2d image_size = 28;
  int64_t channels = 1;
  Size2d patch_size = 7;
  std::vector<nn::StemLayer> stem;
  int64_t hidden_size = 96, num_classes = 10;
  std::string classifier = kPoolToken;
  std::optional<bool> class_token;
  int64_t num_registers = 0;
  bool norm_after_pooling = false;
  std::optional<bool> map_head_qk_norm;
  int64_t representation_size = 0;
  std::optional<double> head_bias_init = 0.0;
  VMoEEncoderConfig encoder;

  /// Returns whether a linear layer returns classes.
  bool has_head() const { return num_classes > 0; }
  /// Returns whether the position embedding is a parameter.
  bool has_learned_positions() const { return encoder.position_emb.name == kLearned; }
  /// Returns whether a class token is added to the patches.
  bool has_class_token() const { return class_token.value_or(classifier.starts_with(kPoolToken)); }
  /// Returns the number of tokens before the patches: class token and registers.
  int64_t num_prefix_tokens() const { return num_registers + (has_class_token() ? 1 : 0); }
  /// Returns whether attention pools the tokens.
  bool has_map_head() const { return classifier == kPoolMap; }
  /// Returns whether that pooling normalises queries and keys.
  bool has_map_head_qk_norm() const { return map_head_qk_norm.value_or(encoder.attention_qk_norm); }
  /// Returns the width of the pooled tokens.
  int64_t pooled_size() const {
    const int64_t parts = classifier == kPoolTokenAndMean ? 2
                          : classifier == kPoolTokens     ? num_prefix_tokens()
                                                          : 1;
    return parts * hidden_size;
  }
  /// Returns the width of the head's input.
  int64_t pre_logits_size() const {
    return representation_size > 0 ? representation_size : pooled_size();
  }
  /// Returns the number of patches along height and width.
  Size2d grid() const {
    return {image_size.height / patch_size.height, image_size.width / patch_size.width};
  }
  /// Returns the height and width of a patch on the map that the patch embedding takes.
  Size2d embedding_patch_size() const {
    Size2d patch = patch_size;
    for (const nn::StemLayer& layer : stem) {
      patch = {patch.height / layer.stride, patch.width / layer.stride};
    }
    return patch;
  }
  /// Returns the number of an image's patches.
  int64_t num_patches() const { return grid().height * grid().width; }
  /// Returns the number of an image's tokens in a member.
  int64_t num_tokens() const { return num_patches() + num_prefix_tokens(); }
  /// Returns the number of tokens that a learned position embedding has rows for.
  int64_t num_embedded_tokens() const {
    return num_patches() + (has_class_token() && encoder.position_emb.class_token ? 1 : 0);
  }
  /// Returns the tokens that are routed together, of all members; 0 means all of a batch.
  int64_t group_size() const {
    const VMoEMoeConfig& moe = encoder.moe;
    return moe.group_size > 0 ? moe.group_size
                              : moe.num_group_images * num_tokens() * moe.ensemble_size;
  }
};
void describe(auto& f, VMoEConfig& c) {
  f("name", c.name, "name of the model family; e3: vmoe with an ensemble", required,
    one_of({kVMoE, kE3}));
  f("image_size", c.image_size, "height and width of the images, in pixels", between(1, kMaxImage));
  f("channels", c.channels, "number of image channels", between(1, kMaxChannels));
  f("patch_size", c.patch_size, "height and width of a patch, in pixels", between(1, kMaxImage));
  f("stem", c.stem,
    "convolutions (3 x 3) before the patch embedding, each with a normalization and ReLU; their "
    "strides divide patch_size, which counts pixels of the image; empty: none");
  f("hidden_size", c.hidden_size, "embedding size of a token", between(1, kMaxWidth),
    known_as({"d_model", "embed_dim", "width"}));
  f("num_classes", c.num_classes,
    "number of classes; 0: no head, the network returns the head's input", between(0, kMaxWidth),
    renamed_from("classes"));
  f("classifier", c.classifier,
    "input of the head; token: class token; gap: mean of the patches; token_gap: class token and "
    "mean of the patches side by side; tokens: class token and registers side by side; map: "
    "attention pooling of the patches; 0: first token",
    one_of({kPoolToken, kPoolMean, kPoolMap, "0", kPoolTokenAndMean, kPoolTokens}));
  f("class_token", c.class_token,
    "learned token before the patches; null: where the classifier takes it");
  f("num_registers", c.num_registers,
    "number of registers, learned tokens behind the class token without a position; 0: none",
    between(0, kMaxLayers));
  f("norm_after_pooling", c.norm_after_pooling,
    "layer normalization of the pooled token instead of all tokens before");
  f("map_head_qk_norm", c.map_head_qk_norm,
    "normalization of queries and keys in attention pooling; null: as encoder.attention_qk_norm");
  f("representation_size", c.representation_size, "width of a tanh layer before the head; 0: none",
    between(0, kMaxWidth));
  f("head_bias_init", c.head_bias_init,
    "initial bias of a new head; null: -ln of the number of classes", between(-1e6, 1e6));
  f("encoder", c.encoder, "settings of the transformer encoder");
}

/// Returns what is wrong with settings together, e.g. a patch size that does not divide the image
/// size; "" if nothing is.
ConfigProblem config_problem(const VMoEConfig& config);

/// Returns the settings of a dense network's mixture: as many experts in these layers, whose gates
/// sum to 1. Other settings of the router are those of `dense`.
VMoEConfig upcycled_config(VMoEConfig dense, const Upcycling& upcycling);

}  // namespace moesaic
