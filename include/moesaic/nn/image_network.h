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
  int64_t channels = 3, side = 32;  ///< Shape of the images.
  int64_t classes = 10;
  double width = 1.0;  ///< Factor on the number of channels, rounded, at least one channel.
};

class ImageNetwork : public torch::nn::Module {
 public:
  /// Computes the latent embedding of images_BCHW [B, C, S, S] -> [B, d], on a GPU in channels-last
  /// memory, which its convolutions are made for.
  at::Tensor features(const at::Tensor& images_BCHW);

  /// FLOPs of one image: multiplications and additions of its products.
  double flops() const;
  /// Gives the network a new head of zeros with `classes` outputs.
  void reset_head(int64_t classes);

  torch::nn::Linear head{nullptr};  ///< Linear head, features -> classes.

 protected:
  /// Computes features() of images in any memory format.
  virtual at::Tensor embed(const at::Tensor& images_BCHW) = 0;

  /// Makes the head on `width` features, whose computation takes `flops`.
  void make_head(int64_t width, double flops, int64_t classes, const at::Generator& generator);

 private:
  double feature_flops_ = 0.0;
};

/// Returns the names of the networks:
///
///     cnn: two 3x3 convolutions with 64 and 128 filters, each followed by ReLU and 2 x 2 max
///         pooling, and a linear layer over the whole map.
///     mobilenetv2: Sandler et al., arXiv:1801.04381, for 32 x 32 images: stem and first two
///         stages without stride, ReLU, and a 1x1 convolution in a shortcut that changes channels.
///     resnet18: He et al., arXiv:1512.03385, for 32 x 32 images: a 3x3 stem without stride and
///         without max pooling, four stages of 64 to 512 channels.
std::vector<std::string> image_network_names();

/// Builds the network of this name. Throws Error (usage) for a name not in image_network_names().
std::shared_ptr<ImageNetwork> make_image_network(const std::string& name,
                                                 const ImageNetworkOptions& options,
                                                 const at::Generator& generator);

}  // namespace moesaic::nn
