// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "moesaic/models/model.h"
#include "moesaic/models/vmoe/config.h"

namespace moesaic {

/// Resizes a position embedding [1, T, d] to T' = `tokens` tokens. The rows of a square grid are
/// interpolated linearly with aligned corners along both axes. Output k of n reads at position k *
/// ((s - 1) / (n - 1)) of s, computed in float64; where rounding exceeds s - 1 it is 0, as in the
/// reference. The row of a class token (T is a square plus 1) is copied, or dropped where T' has
/// none. For T = T' nothing changes. Throws Error (usage) for lengths that are neither a square nor
/// a square plus 1, and where only T' has a class token.
at::Tensor vit_zoom(const at::Tensor& embedding_1Td, int64_t tokens);
/// Returns why vit_zoom() cannot turn the first shape into the second, "" if it can.
std::string vit_zoom_problem(const std::vector<int64_t>& from, const std::vector<int64_t>& to);

/// Returns the experts that pruning left of a tensor of experts, or nullptr if it has them all.
const std::vector<int64_t>* kept_experts_of(const VMoEConfig& config, const std::string& name);

/// Returns a tensor of a network's state, float32 on the CPU, with rows of zeros for the experts
/// that pruning removed, which give a token routed to them nothing as well.
at::Tensor with_removed_experts(const VMoEConfig& config, const std::string& name,
                                const at::Tensor& values);

/// Returns the tensor of the dense network that the experts' tensor `name` begins as, "" for a
/// tensor that is none of experts.
std::string dense_name(const std::string& name);
/// Returns the experts' tensor `name`, of `shape` [experts, ...]: copies of the dense one, of which
/// weights get Upcycling::noise, drawn from seed and name.
at::Tensor expert_copies(const at::Tensor& dense, const std::string& name, at::IntArrayRef shape,
                         double noise, uint64_t seed);

/// V-MoE (Riquelme et al., arXiv:2106.05974): a vision transformer in which some blocks have
/// experts in place of the MLP. Stem, if any -> patches -> class token -> + position embedding ->
/// registers (Darcet et al., arXiv:2309.16588) -> blocks -> norm -> class token, mean or attention
/// pooling -> tanh layer -> head, as configured.
/// As E3 it is an ensemble: before the first MoE block each image is repeated for every member,
/// image 0 of members 0..M-1, image 1, ...; each member has its own experts.
class VMoE : public Model, public nn::DataParallelModule {
 public:
  /// Draws the initial values from `seed`. Throws Error (usage) for a configuration with a problem.
  VMoE(VMoEConfig config, uint64_t seed);

  using Model::forward, Model::to;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  void set_first_sample_index(int64_t image) override;
  Json config() const override;
  Json constants() const override;
  void reset_head(int64_t classes) override;
  std::vector<MoEBlock> moe_blocks() const override;
  std::vector<int64_t> input_shape() const override {
    return {config_.channels, config_.image_size.height, config_.image_size.width};
  }
  int64_t num_classes() const override { return config_.num_classes; }
  int64_t num_members() const override { return config_.encoder.moe.ensemble_size; }
  std::map<std::string, double> aux_losses() const override;
  int64_t tokens_per_image() const override { return config_.num_tokens() * num_members(); }
  std::optional<PatchTokens> patch_tokens() const override {
    return PatchTokens{config_.grid(), config_.num_prefix_tokens()};
  }
  double flops_per_image(const RowsPerToken& rows_per_token = {}) const override;
  SettingPaths setting_paths() const override;
  /// Also allows the position embedding, for images of another size, and the layer before the head.
  bool may_differ_from_pretrained(const std::string& parameter) const override;
  /// As timm counts: N - i for block i = 0..N-1, N + 1 for all before, 1 for the last norm.
  std::optional<int64_t> layers_after(const std::string& parameter) const override;
  /// Also takes a V-MoE with another image size, number of members or layer before the head, as the
  /// reference's recipes begin fine-tuning: the position embedding is resized, the layer starts
  /// anew.
  void initialise_from(const Model& source, const TensorMap& values, bool new_head,
                       const std::string& from) override;
  std::shared_ptr<Model> upcycled(const Upcycling& upcycling, uint64_t seed) const override;
  std::optional<torch::jit::Module> torchscript(const script::Context& context) const override;

  /// Returns the configuration that the network was built from.
  const VMoEConfig& settings() const { return config_; }
  /// Returns the fixed position embedding [1, patches, d] of sincos2d, else an undefined tensor.
  /// The configuration determines this embedding, so that it is not part of the network's state.
  const at::Tensor& sincos_position_embedding() const { return sincos_position_embedding_; }
  /// Returns whether the position embedding is learned and has a row for the class token.
  bool embeds_class_token() const {
    return cls.defined() && position_embedding.defined() &&
           config_.encoder.position_emb.class_token;
  }

  nn::ConvStem stem{nullptr};  ///< Null without one.
  torch::nn::Conv2d embedding{nullptr};
  at::Tensor cls;                 ///< Class token [1, 1, d]; undefined without one.
  at::Tensor registers;           ///< Registers [1, R, d]; undefined without them.
  at::Tensor position_embedding;  ///< Learned embedding [1, embedded tokens, d], or undefined.
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  nn::MapHead map_head{nullptr};          ///< Null where pooling is a token or the mean.
  torch::nn::Linear pre_logits{nullptr};  ///< Null without representation_size.
  torch::nn::Linear head{nullptr};        ///< Null without classes.

 private:
  at::Tensor embed(const at::Tensor& images_BCHW);
  at::Tensor pool(const at::Tensor& x_BTd);
  void move_positions(torch::Device device, bool non_blocking);

  VMoEConfig config_;
  at::Tensor sincos_position_embedding_;
};

}  // namespace moesaic
