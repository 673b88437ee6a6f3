// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/wide_resnet.h"

#include <torch/torch.h>

#include "moesaic/nn/init.h"

namespace moesaic::nn {
namespace {

constexpr int64_t kGroups = 3, kStemChannels = 16;

Convolution make_convolution(Maps& maps, int64_t outputs, int64_t kernel, int64_t stride,
                             const at::Generator& generator) {
  const int64_t fans = (maps.channels + outputs) * kernel * kernel;
  Convolution made(
      maps,
      ConvolutionOptions{
          .outputs = outputs, .kernel = kernel, .stride = stride, .bias = true, .pads_end = true},
      generator);
  const torch::NoGradGuard no_grad;
  xavier_uniform(made->weight, fans, generator);
  made->bias.zero_();
  return made;
}

/// Batch normalisation, ReLU and a 3x3 convolution.
class NormConvImpl : public torch::nn::Module {
 public:
  NormConvImpl(Maps& maps, int64_t outputs, int64_t stride, const at::Generator& generator) {
    norm_ = register_module("norm", BatchNorm2d(wide_norm(maps.channels)));
    conv_ = register_module("conv", make_convolution(maps, outputs, 3, stride, generator));
  }

  at::Tensor forward(const at::Tensor& x_BCHW) {
    return conv_->forward(norm_->forward(x_BCHW).relu_());
  }

 private:
  BatchNorm2d norm_{nullptr};
  Convolution conv_{nullptr};
};
TORCH_MODULE(NormConv);

class WideBlockImpl : public torch::nn::Module {
 public:
  /// With stride 0 the block keeps its input's shape and adds the input itself.
  WideBlockImpl(Maps& maps, int64_t outputs, int64_t stride, const at::Generator& generator) {
    Maps beside = maps;
    first_ =
        register_module("first", NormConv(maps, outputs, std::max<int64_t>(1, stride), generator));
    second_ = register_module("second", NormConv(maps, outputs, 1, generator));
    if (stride == 0) return;
    const double before = beside.flops;
    shortcut_ =
        register_module("shortcut", make_convolution(beside, outputs, 1, stride, generator));
    maps.flops += beside.flops - before;
  }

  at::Tensor forward(const at::Tensor& x_BCHW) {
    const at::Tensor y_BCHW = second_->forward(first_->forward(x_BCHW));
    return y_BCHW + (shortcut_ ? shortcut_->forward(x_BCHW) : x_BCHW);
  }

 private:
  NormConv first_{nullptr}, second_{nullptr};
  Convolution shortcut_{nullptr};
};
TORCH_MODULE(WideBlock);

}  // namespace

torch::nn::BatchNormOptions wide_norm(int64_t channels) {
  return torch::nn::BatchNormOptions(channels).eps(1e-3).momentum(0.01);
}

int64_t WideResNetOptions::channels_of(int64_t group) const {
  return static_cast<int64_t>(static_cast<double>(kStemChannels << group) * widening);
}

WideResNetImpl::WideResNetImpl(const WideResNetOptions& options, const at::Generator& generator)
    : maps_{options.channels, options.side} {
  stem_ = register_module("stem", make_convolution(maps_, kStemChannels, 3, 1, generator));
  for (int64_t g = 0; g < kGroups; ++g) {
    const int64_t channels = options.channels_of(g), stride = g == 0 ? 1 : 2;
    if (g + 1 == kGroups && !options.last_group) {
      groups_->push_back(NormConv(maps_, channels, stride, generator));
      break;
    }
    for (int64_t b = 0; b < options.blocks; ++b) {
      groups_->push_back(WideBlock(maps_, channels, b == 0 ? stride : 0, generator));
    }
  }
  register_module("groups", groups_);
}

}  // namespace moesaic::nn
