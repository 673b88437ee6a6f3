// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace moesaic::nn {

/// What an image is at some depth of a network, and what it took to make it.
struct Maps {
  int64_t channels = 0, side = 0;
  double flops = 0.0;  ///< multiplications and additions of products
};

struct ConvolutionOptions {
  int64_t outputs = 0;
  int64_t kernel = 3;  ///< odd; the border is padded by kernel / 2 zeros
  int64_t stride = 1;
  int64_t groups = 1;
  bool bias = false;
};

/// Values uniform on +-1 / sqrt(fan_in), in place.
void fan_in_uniform(at::Tensor& values, int64_t fan_in, at::Generator generator);

/// A convolution of square maps: `weight` [outputs, C / groups, kernel, kernel] and, where there is
/// one, `bias` [outputs], both uniform on +-1 / sqrt(fan_in).
class ConvolutionImpl : public torch::nn::Module {
 public:
  /// `maps`: what it takes, and after the call what it gives.
  ConvolutionImpl(Maps& maps, ConvolutionOptions options, const at::Generator& generator);

  /// [B, C, S, S] -> [B, outputs, ceil(S / stride), ceil(S / stride)]
  at::Tensor forward(const at::Tensor& x_BCHW) const;

  at::Tensor weight, bias;

 private:
  ConvolutionOptions options_;
};
TORCH_MODULE(Convolution);

/// A convolution and the batch normalisation of what it gives (momentum 0.1, epsilon 1e-5). In
/// training, one value a channel has no variance: it is normalised by the running statistics.
class ConvNormImpl : public torch::nn::Module {
 public:
  ConvNormImpl(Maps& maps, ConvolutionOptions options, const at::Generator& generator);
  at::Tensor forward(const at::Tensor& x_BCHW);

  Convolution conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
};
TORCH_MODULE(ConvNorm);

}  // namespace moesaic::nn
