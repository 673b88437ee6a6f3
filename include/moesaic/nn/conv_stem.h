// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic::nn {

/// A convolution of a ConvStem.
struct StemLayer {
  int64_t channels = 0;
  int64_t stride = 1;
  std::string norm = "layer_norm";  ///< Or "batch_norm".
};

/// Convolutions in front of a patch embedding ("Early Convolutions Help Transformers See Better",
/// arXiv:2106.14881): each a 3x3 convolution without bias, a normalisation and ReLU. `batch_norm`
/// is the paper's (momentum 0.1, epsilon 1e-5; in training over the batch of all processes).
/// `layer_norm` normalises every pixel over its channels, so that an image does not depend on the
/// rest of its batch, however it is divided.
class ConvStemImpl : public torch::nn::Module {
 public:
  /// Draws the initial values from `generator`; `inputs` is the number of the images' channels.
  ConvStemImpl(int64_t inputs, const std::vector<StemLayer>& layers,
               const at::Generator& generator);

  /// Computes x_BCHW [B, C, H, W] -> [B, channels, H', W'] of the last layer; each divides the
  /// sides by its stride, rounding up.
  at::Tensor forward(const at::Tensor& x_BCHW);

  torch::nn::ModuleList convs, norms;
};
TORCH_MODULE(ConvStem);

}  // namespace moesaic::nn
