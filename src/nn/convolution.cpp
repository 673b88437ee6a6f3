// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/convolution.h"

#include <torch/torch.h>

#include <cmath>

namespace moesaic::nn {

void fan_in_uniform(at::Tensor& values, int64_t fan_in, at::Generator generator) {
  const torch::NoGradGuard no_grad;
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  values.uniform_(-bound, bound, std::move(generator));
}

ConvolutionImpl::ConvolutionImpl(Maps& maps, ConvolutionOptions options,
                                 const at::Generator& generator)
    : options_(options) {
  const int64_t inputs = maps.channels / options.groups, kernel = options.kernel;
  const int64_t fan_in = inputs * kernel * kernel;
  weight = register_parameter("weight", torch::empty({options.outputs, inputs, kernel, kernel}));
  fan_in_uniform(weight, fan_in, generator);
  if (options.bias) {
    bias = register_parameter("bias", torch::empty({options.outputs}));
    fan_in_uniform(bias, fan_in, generator);
  }
  maps.channels = options.outputs;
  maps.side = (maps.side + options.stride - 1) / options.stride;
  maps.flops += 2.0 * static_cast<double>(fan_in * options.outputs) *
                static_cast<double>(maps.side * maps.side);
}

// LibTorch's channels-last convolutions of few channels write outside of their memory: with a guard
// around every tensor, the backward pass of a 1 x 1 convolution from two channels to one over
// [3, 2, 32, 32] wrote before the start of its gradient (2.11, a Xeon with AMX, two threads).
at::Tensor ConvolutionImpl::forward(const at::Tensor& x_BCHW) const {
  const int64_t border = options_.kernel / 2;
  const bool at_end =
      options_.pads_end && border > 0 && options_.stride == 2 && x_BCHW.size(3) % 2 == 0;
  const at::Tensor padded =
      at_end ? at::constant_pad_nd(x_BCHW, {border - 1, border, border - 1, border}) : x_BCHW;
  return at::conv2d(padded.contiguous(), weight, bias, options_.stride, at_end ? 0 : border,
                    /*dilation=*/1, options_.groups);
}

ConvNormImpl::ConvNormImpl(Maps& maps, ConvolutionOptions options, const at::Generator& generator) {
  conv = register_module("conv", Convolution(maps, options, generator));
  norm = register_module("norm", BatchNorm2d(options.outputs));
}

at::Tensor ConvNormImpl::forward(const at::Tensor& x_BCHW) {
  const at::Tensor y = conv->forward(x_BCHW);
  if (!norm->is_training() || y.numel() != y.size(1) || norm->share().parts())
    return norm->forward(y);
  return at::batch_norm(y, norm->weight, norm->bias, norm->running_mean, norm->running_var,
                        /*training=*/false, /*momentum=*/0.0, norm->options.eps(),
                        /*cudnn_enabled=*/false);
}

}  // namespace moesaic::nn
