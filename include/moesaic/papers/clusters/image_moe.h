// SPDX-License-Identifier: Apache-2.0
// Mixtures of convolutional networks that route whole images ("Towards Understanding Mixture of
// Experts in Deep Learning", section 6.2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/config/problem.h"
#include "moesaic/config/schema.h"
#include "moesaic/models/router_config.h"
#include "moesaic/nn/image_experts.h"
#include "moesaic/nn/image_network.h"
#include "moesaic/papers/clusters/image_token_model.h"

namespace moesaic {

inline constexpr char kImageMoE[] = "image-moe";

struct ImageRouterConfig : ImageTokenRouterConfig {
  int64_t patch_size = 4;
};
template <class Fields>
void describe(Fields& f, ImageRouterConfig& c) {
  f("patch_size", c.patch_size, "side of the squares whose sum it looks at", between(1, 1024));
  describe(f, static_cast<ImageTokenRouterConfig&>(c));
}

struct ImageMoEConfig {
  std::string name = kImageMoE;
  std::string expert = "cnn";
  int64_t experts = 4;
  int64_t image_size = 32, channels = 3, classes = 10;
  double width = 1.0;
  std::optional<ImageRouterConfig> router = ImageRouterConfig{};
};
template <class Fields>
void describe(Fields& f, ImageMoEConfig& c) {
  f("name", c.name, "which model", required, one_of({kImageMoE}));
  f("expert", c.expert, "what an expert is", one_of(nn::image_network_names()));
  f("experts", c.experts, "M, networks of which one sees an image", between(1, 1024));
  f("image_size", c.image_size, "height and width of the images", between(4, 1024));
  f("channels", c.channels, "of the images", between(1, 16));
  f("classes", c.classes, "outputs of an expert", between(1, 65536));
  f("width", c.width, "fraction of an expert's usual channels, rounded", between(0.01, 16.0));
  f("router", c.router,
    "linear switch over the sum of the image's squares; null: a single expert without one");
}
/// Checks that squares fill the image and that there is one expert without a router.
ConfigProblem config_problem(const ImageMoEConfig& config);

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
