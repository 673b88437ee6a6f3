// SPDX-License-Identifier: Apache-2.0
// The interface that every network offers to training, pruning and export.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <nlohmann/json.hpp>

#include "moesaic/config/rules.h"
#include "moesaic/models/router_config.h"
#include "moesaic/nn/module_state.h"
#include "moesaic/nn/moe_layer.h"

namespace torch::jit {
struct Module;
}

namespace moesaic::script {
struct Context;
}

namespace moesaic {

using nn::RoutingRecord;

/// What a forward pass returns.
struct ModelOutput {
  at::Tensor logits;                    ///< Logits [B members, classes], an image's members in
                                        ///< a row; pre_logits without a head.
  at::Tensor pre_logits;                ///< Input of the head, [B members, d].
  std::vector<RoutingRecord> routings;  ///< One record for each MoE layer, in order.
};

/// An MoE layer and the index of its block.
struct MoEBlock {
  int64_t block = 0;
  nn::MoELayer layer{nullptr};
  int64_t num_groups = 0;  ///< Equal parts of the experts, in turn, that pruning ranks apart; 0:
                           ///< the members of an ensemble.

  /// Returns the number of parts that pruning ranks apart.
  int64_t num_ranked_groups() const {
    return num_groups > 0 ? num_groups : layer->options().num_members;
  }
};

/// Tokens of an image that are its patches, row by row of a grid, after `num_prefix_tokens` other
/// ones.
struct PatchTokens {
  Size2d grid;
  int64_t num_prefix_tokens = 0;
};

/// Rows that experts compute per token, by block; a block without an entry computes all choices.
using RowsPerToken = std::map<int64_t, double>;

/// Paths, within "model", of the settings of a family that messages may name, e.g.
/// "encoder.moe.group_size"; "" where the family has no such setting.
struct SettingPaths {
  std::string router_name = {};        ///< Routing rule: token choice or expert choice.
  std::string router_noise = {};       ///< Scale of the noise on the router's logits.
  std::string router_noise_kind = {};  ///< Distribution of that noise.
  std::string rows_per_expert = {};    ///< Tokens that an expert selects.
  std::string capacity_factor = {};
  std::string evaluation_capacity_factor = {};  ///< Outside of training; 0 drops no token.
  std::string group_size = {};                  ///< Tokens that share a capacity.
  std::string members = {};                     ///< Members of an ensemble.
  std::string classes = {};
  std::string image_size = {};
  std::string channels = {};
  std::string kept_experts = {};      ///< Experts that pruning kept.
  std::string merged_into = {};       ///< Experts that others were merged into; empty: none can be.
  std::string pruned_selection = {};  ///< Treatment of removed experts; empty: it cannot be set.
};

/// Returns the FLOPs of a layer's mean replacement per token.
double replacement_flops(const nn::MoELayer& layer);

/// Returns the FLOPs (multiplications and additions of matrix products) of a layer for an image of
/// `tokens` tokens: those of its router and of its experts' rows.
double layer_flops(const MoEBlock& block, int64_t tokens, const RowsPerToken& rows_per_token);

/// Key of an export's config.json, beside the network's settings, with Model::constants().
inline constexpr const char* kConstantsKey = "constants";

/// A network of any family.
class Model : public torch::nn::Module {
 public:
  /// Runs the network on images_BCHW [B, C, H, W] float32, normalised. Random numbers of training
  /// are drawn from `random`; where it is undefined there are only those that a model draws in
  /// evaluation too, a function of the images' indices, see set_first_sample_index(). Throws Error
  /// for another shape.
  virtual ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) = 0;
  /// Runs the network without random numbers.
  ModelOutput forward(const at::Tensor& images_BCHW) { return forward(images_BCHW, {}); }

  /// Sets the index of the first image of later forward passes, initially 0. With its index in the
  /// dataset an image's noise does not depend on the batch size.
  virtual void set_first_sample_index(int64_t image) {}

  /// Returns the resolved configuration, which rebuilds exactly this network; that of a pruned
  /// network lists the kept experts of each layer, under setting_paths().kept_experts.
  virtual nlohmann::ordered_json config() const = 0;

  /// Returns constants that a reader in another language needs beside the configuration, e.g. the
  /// epsilon of layer normalisation. By default nothing.
  virtual nlohmann::ordered_json constants() const { return nullptr; }

  /// Gives the network a new head of zeros for another number of classes.
  virtual void reset_head(int64_t classes) = 0;

  /// Returns the MoE layers in the order of their blocks; a single layer has block index 0.
  virtual std::vector<MoEBlock> moe_blocks() const = 0;

  /// Returns the shape of an input, [C, H, W].
  virtual std::vector<int64_t> input_shape() const = 0;
  /// Returns the number of outputs of the head, 0 without a head.
  virtual int64_t num_classes() const = 0;
  /// Returns the number of members of an ensemble; each image has as many rows of logits.
  virtual int64_t num_members() const { return 1; }

  /// Returns the configured weights of auxiliary losses, by the names of aux_loss_names().
  virtual std::map<std::string, double> aux_losses() const { return {}; }

  /// Returns the tokens that an MoE layer routes for one image, of all members.
  virtual int64_t tokens_per_image() const = 0;

  /// Returns which of these tokens are patches of the image, of each member; nothing where tokens
  /// are no patches.
  virtual std::optional<PatchTokens> patch_tokens() const { return std::nullopt; }

  /// Returns the FLOPs (multiplications and additions of matrix products) of a forward pass of one
  /// image.
  virtual double flops_per_image(const RowsPerToken& rows_per_token = {}) const = 0;

  /// Returns the paths of the settings that messages name. By default there are none.
  virtual SettingPaths setting_paths() const { return {}; }

  /// Returns whether a parameter may be absent from the network that this one was fine-tuned from,
  /// or have another shape there. By default heads may, the network's own and those
  /// of experts that are whole networks.
  virtual bool may_differ_from_pretrained(const std::string& parameter) const;

  /// Returns the number of layers from a parameter to the outputs, 0 for those of the head, by
  /// which learning rates may fall. By default nothing.
  virtual std::optional<int64_t> layers_after(const std::string& parameter) const {
    return std::nullopt;
  }

  /// Initialises the parameters from `values`, state_of() a network like `source`, which messages
  /// call `from`; `source` gives shapes only and may be on the meta device. With `new_head` the
  /// head is replaced before training, so `source` may have another number of classes, which this
  /// network takes over. By default all tensors are copied. Throws Error where they do not fit,
  /// before any parameter changes. On the meta device this only checks.
  virtual void initialise_from(const Model& source, const TensorMap& values, bool new_head,
                               const std::string& from);

  /// Returns the mixture that this dense network becomes, on its device; the seed decides routers
  /// and noise. By default there is none. Throws Error (usage) for settings that do not fit.
  virtual std::shared_ptr<Model> upcycled(const Upcycling& upcycling, uint64_t seed) const;

  /// Returns the network as a script module, see to_torchscript(), whose methods are written in the
  /// dialect of `context`. By default there is none. Throws Error for settings that this export
  /// does not support.
  virtual std::optional<torch::jit::Module> torchscript(const script::Context& context) const;

  /// Returns weights to compare with known directions of the data, name -> [experts, vectors, d].
  /// By default there are none.
  virtual std::map<std::string, at::Tensor> weight_directions() const { return {}; }

  /// Returns gates of a recurrent network by name, the mean over its units at each step, [B, T]. By
  /// default there are none.
  virtual std::map<std::string, at::Tensor> gates_over_time(const at::Tensor& images_BCHW) const {
    return {};
  }

  /// Returns whether each step repeats convolutions of the same shapes, so that it pays to try
  /// cuDNN's algorithms for them. By default there are none.
  virtual bool wants_cudnn_benchmark() const { return false; }

  /// Returns the number of all parameters' elements.
  virtual int64_t num_parameters() const;

  /// Returns the device of the parameters.
  virtual at::Device device() const { return parameters().front().device(); }

  /// Turns activation checkpointing on or off: training keeps only the input of each block and
  /// computes the block again in backward. Saves memory for about a third more time; results keep
  /// their bits.
  void set_activation_checkpointing(bool on) { activation_checkpointing_ = on; }
  /// Returns what set_activation_checkpointing() set.
  bool activation_checkpointing() const { return activation_checkpointing_; }

 private:
  bool activation_checkpointing_ = false;
};

/// Returns whether a parameter is one of experts: ".experts." is within its name, or "experts." at
/// its start. Pruning changes its first dimension or, where experts are numbered, removes it.
bool is_expert_parameter(const std::string& parameter);

/// Throws Error where `what`, [B, C, H, W], are not inputs of the network of this name.
void check_input_shape(const Model& model, const std::string& name, const char* what,
                       const at::Tensor& inputs_BCHW);

/// Returns a configuration that lists the experts that are present in the only MoE layer of
/// `model`, and says whether others have a mean replacement, if it has such a setting.
nlohmann::ordered_json with_kept_experts(nlohmann::ordered_json config, const Model& model);

/// Readies a network for inference in `precision` float32, bfloat16 or int8, which is for experts
/// alone (nn::Experts::use_int8()). Returns the precision of its other products, see Autocast.
/// Throws Error (usage) where no experts can compute in int8.
std::string use_precision(Model& model, const std::string& precision);

/// Calls model.reset_head(), on the meta device where the model is there.
void replace_head(Model& model, int64_t classes);

}  // namespace moesaic
