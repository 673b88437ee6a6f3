// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/image_network.h"

#include <torch/torch.h>

#include "image_blocks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"

namespace moesaic::nn {

// On a CPU oneDNN corrupts the heap for few channels in channels-last memory on two threads.
at::Tensor ImageNetwork::features(const at::Tensor& images_BCHW) {
  return embed(images_BCHW.is_cuda() ? images_BCHW.contiguous(at::MemoryFormat::ChannelsLast)
                                     : images_BCHW);
}

double ImageNetwork::flops() const {
  return feature_flops_ + 2.0 * static_cast<double>(head->weight.numel());
}

void ImageNetwork::make_head(int64_t width, double flops, int64_t classes,
                             const at::Generator& generator) {
  feature_flops_ = flops;
  head = register_module("head", torch::nn::Linear(width, classes));
  fan_in_uniform(head->weight, width, generator);
  fan_in_uniform(head->bias, width, generator);
}

void ImageNetwork::reset_head(int64_t classes) {
  const at::TensorOptions options = head->weight.options().requires_grad(false);
  torch::nn::Linear fresh(head->options.in_features(), classes);
  fresh->weight.set_data(at::zeros({classes, head->options.in_features()}, options));
  fresh->bias.set_data(at::zeros({classes}, options));
  head = replace_module("head", fresh);
}

std::vector<std::string> image_network_names() {
  return {"cnn", "mobilenetv2", "resnet18"};
}

std::shared_ptr<ImageNetwork> make_image_network(const std::string& name,
                                                 const ImageNetworkOptions& options,
                                                 const at::Generator& generator) {
  if (name == "cnn") return make_small_cnn(options, generator);
  if (name == "mobilenetv2") return make_mobilenet_v2(options, generator);
  if (name == "resnet18") return make_resnet18(options, generator);
  fail_usage("unknown image network '{}'; {}", name, did_you_mean(name, image_network_names()));
}

}  // namespace moesaic::nn
