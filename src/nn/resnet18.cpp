// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "image_blocks.h"

namespace moesaic::nn {
namespace {

/// Two 3x3 convolutions beside a shortcut.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(Maps& maps, int64_t outputs, int64_t stride, const at::Generator& generator) {
    Maps beside = maps;
    first_ = register_module(
        "first",
        ConvNorm(maps, ConvolutionOptions{.outputs = outputs, .stride = stride}, generator));
    second_ = register_module("second",
                              ConvNorm(maps, ConvolutionOptions{.outputs = outputs}, generator));
    if (stride == 1 && beside.channels == outputs) return;
    const double before = beside.flops;
    shortcut_ = register_module(
        "shortcut",
        ConvNorm(beside, ConvolutionOptions{.outputs = outputs, .kernel = 1, .stride = stride},
                 generator));
    maps.flops += beside.flops - before;
  }

  at::Tensor forward(const at::Tensor& x_BCHW) {
    const at::Tensor y = second_->forward(first_->forward(x_BCHW).relu_());
    return (y + (shortcut_ ? shortcut_->forward(x_BCHW) : x_BCHW)).relu_();
  }

 private:
  ConvNorm first_{nullptr}, second_{nullptr}, shortcut_{nullptr};
};
TORCH_MODULE(ResidualBlock);

class ResNet18 final : public ImageNetwork {
 public:
  ResNet18(const ImageNetworkOptions& options, const at::Generator& generator) {
    Maps maps{options.channels, options.side};
    const auto channels = [&](int64_t usual) { return scaled_channels(usual, options); };
    stem_ = register_module("stem",
                            ConvNorm(maps, ConvolutionOptions{.outputs = channels(64)}, generator));
    for (const int64_t usual : {64, 128, 256, 512}) {
      blocks_->push_back(ResidualBlock(maps, channels(usual), usual == 64 ? 1 : 2, generator));
      blocks_->push_back(ResidualBlock(maps, channels(usual), 1, generator));
    }
    register_module("blocks", blocks_);
    make_head(maps.channels, maps.flops, options.classes, generator);
  }

  at::Tensor embed(const at::Tensor& images_BCHW) override {
    return blocks_->forward(stem_->forward(images_BCHW).relu_()).mean({2, 3});
  }

 private:
  ConvNorm stem_{nullptr};
  torch::nn::Sequential blocks_;
};

}  // namespace

std::shared_ptr<ImageNetwork> make_resnet18(const ImageNetworkOptions& options,
                                            const at::Generator& generator) {
  return std::make_shared<ResNet18>(options, generator);
}

}  // namespace moesaic::nn
