// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "image_blocks.h"

namespace moesaic::nn {
namespace {

/// An inverted residual: 1x1 to more channels, 3x3 per channel, 1x1 to few; a shortcut if stride 1.
class InvertedResidualImpl : public torch::nn::Module {
 public:
  InvertedResidualImpl(Maps& maps, int64_t expansion, int64_t outputs, int64_t stride,
                       const at::Generator& generator)
      : stride_(stride) {
    const int64_t wide = expansion * maps.channels;
    Maps beside = maps;
    const auto layer = [&](Maps& from, const ConvolutionOptions& options) {
      return ConvNorm(from, options, generator);
    };
    expand_ = register_module("expand", layer(maps, {.outputs = wide, .kernel = 1}));
    within_ =
        register_module("within", layer(maps, {.outputs = wide, .stride = stride, .groups = wide}));
    project_ = register_module("project", layer(maps, {.outputs = outputs, .kernel = 1}));
    if (stride != 1 || beside.channels == outputs) return;
    const double before = beside.flops;
    shortcut_ = register_module("shortcut", layer(beside, {.outputs = outputs, .kernel = 1}));
    maps.flops += beside.flops - before;
  }

  at::Tensor forward(const at::Tensor& x_BCHW) {
    const at::Tensor wide = within_->forward(expand_->forward(x_BCHW).relu_()).relu_();
    const at::Tensor y = project_->forward(wide);
    if (stride_ != 1) return y;
    return y + (shortcut_ ? shortcut_->forward(x_BCHW) : x_BCHW);
  }

 private:
  int64_t stride_;
  ConvNorm expand_{nullptr}, within_{nullptr}, project_{nullptr}, shortcut_{nullptr};
};
TORCH_MODULE(InvertedResidual);

struct InvertedStage {
  int64_t expansion, channels, blocks, stride;
};
constexpr InvertedStage kInvertedStages[] = {{1, 16, 1, 1}, {6, 24, 2, 1}, {6, 32, 3, 2},
                                             {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2},
                                             {6, 320, 1, 1}};

class MobileNetV2 final : public ImageNetwork {
 public:
  MobileNetV2(const ImageNetworkOptions& options, const at::Generator& generator) {
    Maps maps{options.channels, options.side};
    const auto channels = [&](int64_t usual) { return scaled_channels(usual, options); };
    stem_ = register_module("stem",
                            ConvNorm(maps, ConvolutionOptions{.outputs = channels(32)}, generator));
    for (const InvertedStage& stage : kInvertedStages) {
      for (int64_t i = 0; i < stage.blocks; ++i) {
        blocks_->push_back(InvertedResidual(maps, stage.expansion, channels(stage.channels),
                                            i == 0 ? stage.stride : 1, generator));
      }
    }
    register_module("blocks", blocks_);
    last_ = register_module(
        "last",
        ConvNorm(maps, ConvolutionOptions{.outputs = channels(1280), .kernel = 1}, generator));
    make_head(maps.channels, maps.flops, options.classes, generator);
  }

  at::Tensor embed(const at::Tensor& images_BCHW) override {
    const at::Tensor x = blocks_->forward(stem_->forward(images_BCHW).relu_());
    return last_->forward(x).relu_().mean({2, 3});
  }

 private:
  ConvNorm stem_{nullptr}, last_{nullptr};
  torch::nn::Sequential blocks_;
};

}  // namespace

std::shared_ptr<ImageNetwork> make_mobilenet_v2(const ImageNetworkOptions& options,
                                                const at::Generator& generator) {
  return std::make_shared<MobileNetV2>(options, generator);
}

}  // namespace moesaic::nn
