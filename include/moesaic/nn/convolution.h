// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "moesaic/nn/batch_norm.h"

namespace moesaic::nn {

/// Shape of the feature maps at some depth of a network, and the cost of computing them.
struct Maps {
  int64_t channels = 0, side = 0;
  double flops = 0.0;  ///< FLOPs of all layers so far for one image.
};

struct ConvolutionOptions {
  int64_t outputs = 0;
  int64_t kernel = 3;  ///< Kernel size, odd; the border is padded by kernel / 2 zeros.
  int64_t stride = 1;
  int64_t groups = 1;
  bool bias = false;
  bool pads_end = false;  ///< Whether an even map gets, with stride 2, all of its border at its
                          ///< end, as TensorFlow pads.
};

/// Fills `values` in place, uniform on +-1 / sqrt(fan_in).
void fan_in_uniform(at::Tensor& values, int64_t fan_in, at::Generator generator);

/// A convolution of square feature maps: `weight` [outputs, C / groups, kernel, kernel] and, with
/// `options.bias`, `bias` [outputs], both initially uniform on +-1 / sqrt(fan_in).
class ConvolutionImpl : public torch::nn::Module {
 public:
  /// `maps` holds the shape of the input and, after the call, that of the output.
  ConvolutionImpl(Maps& maps, ConvolutionOptions options, const at::Generator& generator);

  /// Convolves x_BCHW [B, C, S, S] -> [B, outputs, ceil(S / stride), ceil(S / stride)].
  at::Tensor forward(const at::Tensor& x_BCHW) const;

  at::Tensor weight, bias;

 private:
  ConvolutionOptions options_;
};
TORCH_MODULE(Convolution);

/// A convolution followed by batch normalisation (momentum 0.1, epsilon 1e-5). In training, a
/// channel with a single value has no variance and is normalised by the running statistics.
class ConvNormImpl : public torch::nn::Module {
 public:
  ConvNormImpl(Maps& maps, ConvolutionOptions options, const at::Generator& generator);
  at::Tensor forward(const at::Tensor& x_BCHW);

  Convolution conv{nullptr};
  BatchNorm2d norm{nullptr};
};
TORCH_MODULE(ConvNorm);

}  // namespace moesaic::nn
