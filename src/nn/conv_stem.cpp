// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/conv_stem.h"

#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/nn/encoder_block.h"
#include "moesaic/nn/image_network.h"
#include "moesaic/nn/init.h"

namespace moesaic::nn {

ConvStemImpl::ConvStemImpl(int64_t inputs, const std::vector<StemLayer>& layers,
                           const at::Generator& generator) {
  register_module("convs", convs);
  register_module("norms", norms);
  for (const auto& [channels, stride, norm] : layers) {
    const torch::nn::Conv2d conv(
        torch::nn::Conv2dOptions(inputs, channels, 3).stride(stride).padding(1).bias(false));
    lecun_normal(conv->weight, inputs * 9, generator);
    convs->push_back(conv);
    if (norm == "batch_norm") {
      norms->push_back(BatchNorm2d(channels));
    } else if (norm == "layer_norm") {
      norms->push_back(make_layer_norm(channels));
    } else {
      fail_usage("ConvStem: unknown norm '{}'; choose layer_norm or batch_norm", norm);
    }
    inputs = channels;
  }
}

at::Tensor ConvStemImpl::forward(const at::Tensor& x_BCHW) {
  // Channels last is the layout in which a pixel's channels are normalised without copies.
  at::Tensor x = x_BCHW.contiguous(at::MemoryFormat::ChannelsLast);
  for (size_t layer = 0; layer < convs->size(); ++layer) {
    const at::Tensor y = convs->at<torch::nn::Conv2dImpl>(layer).forward(x);
    if (auto* const norm = norms[layer]->as<BatchNorm2d>()) {
      x = norm->forward(y).relu_();
    } else {
      const at::Tensor y_BHWC = y.permute({0, 2, 3, 1});
      x = norms->at<torch::nn::LayerNormImpl>(layer).forward(y_BHWC).relu_().permute({0, 3, 1, 2});
    }
  }
  return x;
}

}  // namespace moesaic::nn
