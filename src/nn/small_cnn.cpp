// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include "image_blocks.h"

namespace moesaic::nn {
namespace {

class SmallCnn final : public ImageNetwork {
 public:
  SmallCnn(const ImageNetworkOptions& options, const at::Generator& generator) {
    Maps maps{options.channels, options.side};
    const auto convolution = [&](int64_t filters) {
      const int64_t outputs = scaled_channels(filters, options);
      Convolution layer(maps, ConvolutionOptions{.outputs = outputs, .bias = true}, generator);
      maps.side /= 2;  // Max pooling.
      return layer;
    };
    first_ = register_module("first", convolution(64));
    second_ = register_module("second", convolution(128));
    make_head(maps.channels * maps.side * maps.side, maps.flops, options.classes, generator);
  }

  at::Tensor embed(const at::Tensor& images_BCHW) override {
    at::Tensor x = at::max_pool2d(first_->forward(images_BCHW).relu_(), 2);
    x = at::max_pool2d(second_->forward(x).relu_(), 2);
    return x.flatten(1);
  }

 private:
  Convolution first_{nullptr}, second_{nullptr};
};

}  // namespace

std::shared_ptr<ImageNetwork> make_small_cnn(const ImageNetworkOptions& options,
                                             const at::Generator& generator) {
  return std::make_shared<SmallCnn>(options, generator);
}

}  // namespace moesaic::nn
