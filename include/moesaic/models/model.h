// SPDX-License-Identifier: Apache-2.0
// What every trainable network of the library offers to training, pruning and export.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/models/setting_paths.h"
#include "moesaic/nn/moe_layer.h"

namespace torch::jit {
struct Module;
}

namespace moesaic {

using nn::RoutingRecord;

struct ModelOutput {
  at::Tensor logits;                    ///< [B members, classes], an image's members in a row;
                                        ///< without a head the same as pre_logits
  at::Tensor pre_logits;                ///< [B members, d], the head's input
  std::vector<RoutingRecord> routings;  ///< one for each MoE layer, in order
};

/// A MoE layer and the block that it stands in.
struct MoEBlock {
  int64_t block = 0;
  nn::MoELayer layer{nullptr};
};

/// Rows that experts compute for a token, by block; without an entry a block computes all its
/// choices.
using RowsPerToken = std::map<int64_t, double>;

/// Multiplications and additions of products that a layer takes for an image of so many tokens:
/// those of its router, and of its experts' rows.
double layer_flops(const MoEBlock& block, int64_t tokens, const RowsPerToken& rows_per_token);

class Model : public torch::nn::Module {
 public:
  /// images_BCHW: [B, C, H, W] float32, normalised. What is random in training is drawn from
  /// `random`; where it is undefined, nothing is, but for what a model draws in evaluation too:
  /// that is a function of the images' numbers, see set_first_sample_index(). Throws Error for
  /// another shape.
  virtual ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) = 0;
  ModelOutput forward(const at::Tensor& images_BCHW) { return forward(images_BCHW, {}); }

  /// From now on the first image of a forward pass is the one of this number, 0 at first. With the
  /// numbers that it has in the whole, an image's noise does not depend on the size of batches.
  virtual void set_first_sample_index(int64_t image) {}

  /// The resolved configuration, which rebuilds exactly this network; that of a pruned one names
  /// the experts that each layer still has, under setting_paths().kept_experts.
  virtual nlohmann::ordered_json config() const = 0;

  /// Gives the network a fresh head of zeros for another number of classes.
  virtual void reset_head(int64_t classes) = 0;

  /// Its layers with experts, in the order of their blocks; a network of one layer numbers it 0.
  virtual std::vector<MoEBlock> moe_blocks() const = 0;

  /// [C, H, W]
  virtual std::vector<int64_t> input_shape() const = 0;
  /// Outputs of the head; 0: there is none.
  virtual int64_t classes() const = 0;
  /// Members of an ensemble in one network; each image has as many rows of logits.
  virtual int64_t members() const { return 1; }

  /// Weights of auxiliary losses that its configuration asks for, by the names of aux_loss_names().
  virtual std::map<std::string, double> aux_losses() const { return {}; }

  /// Rows that its MoE layers route for one image, of all members.
  virtual int64_t tokens_per_image() const = 0;

  /// Multiplications and additions of matrix products in one forward pass of one image.
  virtual double flops_per_image(const RowsPerToken& rows_per_token = {}) const = 0;

  /// Where its configuration has the settings that messages blame. By default it has none.
  virtual SettingPaths setting_paths() const { return {}; }

  /// Whether a parameter of this name may have another shape than in the network that this one was
  /// fine-tuned from, or be absent there. By default experts may (".experts." or "experts." in
  /// front), since pruning removes them, and what begins with "head".
  virtual bool may_differ_from_pretrained(const std::string& parameter) const;

  /// Takes its first values from `source`, a network that `from` names in messages. With `new_head`
  /// the head is replaced before anything trains, so that of `source` may have another number of
  /// classes: this network then takes it over. By default all tensors are copied. Throws Error
  /// where they do not fit, before anything else changes. On the meta device this only checks.
  virtual void initialise_from(const Model& source, bool new_head, const std::string& from);

  /// The network as a script module, see to_torchscript(). By default there is none. Throws Error
  /// for settings that have no such form.
  virtual std::optional<torch::jit::Module> torchscript() const;

  /// Weights that can be compared with known directions of the data: name -> [experts, vectors, d].
  /// By default there are none.
  virtual std::map<std::string, at::Tensor> weight_directions() const { return {}; }

  int64_t parameter_count() const;

  /// Where its parameters are.
  at::Device device() const;

  /// Whether training keeps of each block its input alone, and computes the block again in
  /// backward: less memory for about a third more time; not a bit of any result changes.
  void set_recompute(bool on) { recompute_ = on; }
  bool recomputes() const { return recompute_; }

 private:
  bool recompute_ = false;
};

/// Does model.reset_head(), on the meta device where the model is a shape.
void give_head(Model& model, int64_t classes);

}  // namespace moesaic
