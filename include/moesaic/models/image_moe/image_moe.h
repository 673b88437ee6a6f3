// SPDX-License-Identifier: Apache-2.0
// Mixtures of convolutional networks that route whole images ("Towards Understanding Mixture of
// Experts in Deep Learning", section 6.2).
#pragma once

#include "moesaic/models/image_moe/config.h"
#include "moesaic/models/image_token_model.h"
#include "moesaic/nn/image_experts.h"

namespace moesaic {

/// F(x) = gate_m f_m(x) with m = argmax h + r and h(x) = sum over the image's squares s of
/// Theta^T x^(s) + b, where the f_m are separate networks and only f_m is computed. Without a
/// router F = f_1. The router's `weight` is [M, C s s + 1], the bias in the last column. Batch
/// normalisation of an expert sees only the images of that expert. The embedding (pre_logits) is
/// the input of the head of the expert that computed the image.
class ImageMoE : public ImageTokenModel {
 public:
  ImageMoE(ImageMoEConfig config, uint64_t seed);

  using Model::forward;
  ModelOutput forward(const at::Tensor& images_BCHW, const at::Generator& random) override;
  nlohmann::ordered_json config() const override { return config_of(config_); }
  void reset_head(int64_t classes) override;
  std::vector<int64_t> input_shape() const override;
  int64_t classes() const override { return config_.classes; }
  SettingPaths setting_paths() const override;
  /// A router sends each expert another number of images at every step.
  bool repeats_convolutions() const override { return moe.is_empty(); }
  std::optional<torch::jit::Module> torchscript() const override;

  const ImageMoEConfig& settings() const { return config_; }

  nn::ImageExperts experts{nullptr};  ///< The experts of `moe` where there is one.

 private:
  at::Tensor square_sums(const at::Tensor& images_BCHW) const;

  ImageMoEConfig config_;
};

}  // namespace moesaic
