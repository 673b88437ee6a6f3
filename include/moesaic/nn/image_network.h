// SPDX-License-Identifier: Apache-2.0
// Convolutional networks for small images: the experts of "Towards Understanding Mixture of
// Experts in Deep Learning", section 6.2.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/nn/convolution.h"

namespace moesaic::nn {

struct ImageNetworkOptions {
  int64_t channels = 3, side = 32;  ///< of the images
  int64_t classes = 10;
  double width = 1.0;  ///< fraction of the usual channels, rounded, at least one
};

class ImageNetwork : public torch::nn::Module {
 public:
  /// The latent embedding: [B, C, S, S] -> [B, d]
  virtual at::Tensor features(const at::Tensor& images_BCHW) = 0;

  /// Multiplications and additions of products for one image.
  double flops() const;
  /// A fresh head of zeros.
  void reset_head(int64_t classes);

  torch::nn::Linear head{nullptr};  ///< features -> classes

 protected:
  /// Makes the head behind `width` features that took `flops`.
  void make_head(int64_t width, double flops, int64_t classes, const at::Generator& generator);

 private:
  double feature_flops_ = 0.0;
};

/// cnn: two 3x3 convolutions with 64 and 128 filters, each followed by ReLU and the maximum over
///     2 x 2, and a linear layer over the whole map.
/// mobilenetv2: Sandler et al., arXiv:1801.04381, for images of 32 x 32: stem and first two
/// stages
///     without stride, ReLU, and a 1x1 convolution in the shortcut where channels change.
/// resnet18: He et al., arXiv:1512.03385, for images of 32 x 32: a stem of 3x3 without stride and
///     without a maximum, four stages of 64 to 512 channels.
std::vector<std::string> image_network_names();

/// Throws Error (usage) for another name.
std::shared_ptr<ImageNetwork> make_image_network(const std::string& name,
                                                 const ImageNetworkOptions& options,
                                                 const at::Generator& generator);

}  // namespace moesaic::nn
