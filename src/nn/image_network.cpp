// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/image_network.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/suggestions.h"
#include "moesaic/nn/init.h"
#include "moesaic/parallel/process_group.h"

namespace moesaic::nn {
namespace {

/// Returns numbers [C] as they multiply x [N, C, ...].
at::Tensor of_channels(const at::Tensor& x_C, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = x_C.size(0);
  return x_C.view(shape);
}

at::Tensor channel_sums(const at::Tensor& x) {
  return x.transpose(0, 1).flatten(1).sum(1);
}

/// Mean and biased variance of each channel of x [N, C, ...] over the batch shards of all
/// processes, which may differ in N, and the number of values of a channel.
struct ChannelMoments {
  at::Tensor mean_C, var_C;
  double values = 0.0;
};

ChannelMoments sync_moments(const at::Tensor& x,
                            const std::shared_ptr<const ProcessGroup>& process_group) {
  const int64_t channels = x.size(1);
  const at::Tensor count = at::full({1}, x.numel() / std::max<int64_t>(1, channels), x.options());
  const at::Tensor sums =
      all_reduce_sum(at::cat({channel_sums(x), count}), process_group, Traffic::batch_norm);
  ChannelMoments moments;
  // On the meta device there is no sum to read, and every process has as many values.
  moments.values = x.is_meta() ? static_cast<double>(x.numel() / channels * process_group->size())
                               : sums[channels].item<double>();
  moments.mean_C = sums.narrow(0, 0, channels) / moments.values;
  const at::Tensor squares = channel_sums((x - of_channels(moments.mean_C, x)).square());
  moments.var_C = all_reduce_sum(squares, process_group, Traffic::batch_norm) / moments.values;
  return moments;
}

/// Fills `values` in place, uniform on +-1 / sqrt(fan_in).
void fan_in_uniform(at::Tensor& values, int64_t fan_in, at::Generator generator) {
  const torch::NoGradGuard no_grad;
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  values.uniform_(-bound, bound, std::move(generator));
}

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& given,
                           const std::shared_ptr<const ProcessGroup>& process_group,
                           const torch::nn::BatchNormOptions& options, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var) {
  // Convolutions of autocast give bfloat16, in which sums would be too coarse.
  const at::Tensor x = given.to(running_mean.scalar_type());
  ChannelMoments moments = sync_moments(x, process_group);
  if (moments.values <= 1.0) {
    moments.mean_C = running_mean;
    moments.var_C = running_var;
  } else {
    const torch::NoGradGuard no_grad;
    const double momentum = options.momentum().value_or(0.1);
    running_mean.lerp_(moments.mean_C, momentum);
    running_var.lerp_(moments.var_C * (moments.values / (moments.values - 1.0)), momentum);
  }
  const at::Tensor scale_C = weight * (moments.var_C + options.eps()).rsqrt();
  const at::Tensor y =
      (x - of_channels(moments.mean_C, x)) * of_channels(scale_C, x) + of_channels(bias, x);
  return y.to(given.scalar_type());
}

ConvolutionImpl::ConvolutionImpl(FeatureMapShape& maps, ConvolutionOptions options,
                                 const at::Generator& generator)
    : options_(options) {
  const int64_t inputs = maps.channels / options.groups, kernel = options.kernel_size;
  const int64_t fan_in = inputs * kernel * kernel;
  weight =
      register_parameter("weight", torch::empty({options.out_channels, inputs, kernel, kernel}));
  fan_in_uniform(weight, fan_in, generator);
  if (options.bias) {
    bias = register_parameter("bias", torch::empty({options.out_channels}));
    fan_in_uniform(bias, fan_in, generator);
  }
  maps.channels = options.out_channels;
  maps.side = (maps.side + options.stride - 1) / options.stride;
  maps.flops += 2.0 * static_cast<double>(fan_in * options.out_channels) *
                static_cast<double>(maps.side * maps.side);
}

// LibTorch's channels-last convolutions of few channels write outside of their memory: with a guard
// around every tensor, the backward pass of a 1 x 1 convolution from two channels to one over
// [3, 2, 32, 32] wrote before the start of its gradient (2.11, a Xeon with AMX, two threads).
at::Tensor ConvolutionImpl::forward(const at::Tensor& x_BCHW) const {
  const int64_t border = options_.kernel_size / 2;
  const bool at_end =
      options_.pads_end_only && border > 0 && options_.stride == 2 && x_BCHW.size(3) % 2 == 0;
  const at::Tensor padded =
      at_end ? at::constant_pad_nd(x_BCHW, {border - 1, border, border - 1, border}) : x_BCHW;
  const int64_t stride = options_.stride, padding = at_end ? 0 : border;
  // ONNX's exporter keeps lists of one element, which no runtime takes.
  return at::conv2d(padded.contiguous(), weight, bias, {stride, stride}, {padding, padding},
                    /*dilation=*/{1, 1}, options_.groups);
}

ConvNormImpl::ConvNormImpl(FeatureMapShape& maps, ConvolutionOptions options,
                           const at::Generator& generator) {
  conv = register_module("conv", Convolution(maps, options, generator));
  norm = register_module("norm", BatchNorm2d(options.out_channels));
}

at::Tensor ConvNormImpl::forward(const at::Tensor& x_BCHW) {
  const at::Tensor y = conv->forward(x_BCHW);
  if (!norm->is_training() || y.numel() != y.size(1) || norm->batch_shard().process_group())
    return norm->forward(y);
  return at::batch_norm(y, norm->weight, norm->bias, norm->running_mean, norm->running_var,
                        /*training=*/false, /*momentum=*/0.0, norm->options.eps(),
                        /*cudnn_enabled=*/false);
}

namespace {

int64_t scaled_channels(int64_t usual, const ImageNetworkOptions& options) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(usual) * options.width));
}

ConvNorm conv_norm(FeatureMapShape& maps, const ConvolutionOptions& options,
                   const at::Generator& generator) {
  return ConvNorm(maps, options, generator);
}

class SmallCnn final : public ImageNetwork {
 public:
  SmallCnn(const ImageNetworkOptions& options, const at::Generator& generator) {
    FeatureMapShape maps{options.channels, options.side};
    const auto convolution = [&](int64_t filters) {
      const int64_t outputs = scaled_channels(filters, options);
      Convolution layer(maps, ConvolutionOptions{.out_channels = outputs, .bias = true}, generator);
      maps.side /= 2;  // Max pooling.
      return layer;
    };
    first_ = register_module("first", convolution(64));
    second_ = register_module("second", convolution(128));
    make_head(maps.channels * maps.side * maps.side, maps.flops, options.num_classes, generator);
  }

  at::Tensor embed(const at::Tensor& images_BCHW) override {
    const auto halved = [](const at::Tensor& x) {
      return at::max_pool2d(x, {2, 2}, {2, 2}, {0, 0}, {1, 1});
    };
    at::Tensor x = halved(first_->forward(images_BCHW).relu_());
    x = halved(second_->forward(x).relu_());
    return x.flatten(1);
  }

 private:
  Convolution first_{nullptr}, second_{nullptr};
};

/// An inverted residual: 1x1 to more channels, 3x3 per channel, 1x1 to few; a shortcut if stride 1.
class InvertedResidualImpl : public torch::nn::Module {
 public:
  InvertedResidualImpl(FeatureMapShape& maps, int64_t expansion, int64_t outputs, int64_t stride,
                       const at::Generator& generator)
      : stride_(stride) {
    const int64_t wide = expansion * maps.channels;
    FeatureMapShape beside{maps.channels, maps.side};
    const auto layer = [&](FeatureMapShape& from, const ConvolutionOptions& options) {
      return conv_norm(from, options, generator);
    };
    expand_ = register_module("expand", layer(maps, {.out_channels = wide, .kernel_size = 1}));
    within_ = register_module(
        "within", layer(maps, {.out_channels = wide, .stride = stride, .groups = wide}));
    project_ = register_module("project", layer(maps, {.out_channels = outputs, .kernel_size = 1}));
    if (stride != 1 || beside.channels == outputs) return;
    shortcut_ =
        register_module("shortcut", layer(beside, {.out_channels = outputs, .kernel_size = 1}));
    maps.flops += beside.flops;
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
    FeatureMapShape maps{options.channels, options.side};
    const auto channels = [&](int64_t usual) { return scaled_channels(usual, options); };
    stem_ = register_module("stem", conv_norm(maps, {.out_channels = channels(32)}, generator));
    for (const InvertedStage& stage : kInvertedStages) {
      for (int64_t i = 0; i < stage.blocks; ++i) {
        blocks_->push_back(InvertedResidual(maps, stage.expansion, channels(stage.channels),
                                            i == 0 ? stage.stride : 1, generator));
      }
    }
    register_module("blocks", blocks_);
    last_ = register_module(
        "last", conv_norm(maps, {.out_channels = channels(1280), .kernel_size = 1}, generator));
    make_head(maps.channels, maps.flops, options.num_classes, generator);
  }

  at::Tensor embed(const at::Tensor& images_BCHW) override {
    const at::Tensor x = blocks_->forward(stem_->forward(images_BCHW).relu_());
    return last_->forward(x).relu_().mean({2, 3});
  }

 private:
  ConvNorm stem_{nullptr}, last_{nullptr};
  torch::nn::Sequential blocks_;
};

/// Two 3x3 convolutions beside a shortcut.
class ResidualBlockImpl : public torch::nn::Module {
 public:
  ResidualBlockImpl(FeatureMapShape& maps, int64_t outputs, int64_t stride,
                    const at::Generator& generator) {
    FeatureMapShape beside{maps.channels, maps.side};
    first_ = register_module(
        "first", conv_norm(maps, {.out_channels = outputs, .stride = stride}, generator));
    second_ = register_module("second", conv_norm(maps, {.out_channels = outputs}, generator));
    if (stride == 1 && beside.channels == outputs) return;
    shortcut_ = register_module(
        "shortcut", conv_norm(beside, {.out_channels = outputs, .kernel_size = 1, .stride = stride},
                              generator));
    maps.flops += beside.flops;
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
    FeatureMapShape maps{options.channels, options.side};
    const auto channels = [&](int64_t usual) { return scaled_channels(usual, options); };
    stem_ = register_module("stem", conv_norm(maps, {.out_channels = channels(64)}, generator));
    for (const int64_t usual : {64, 128, 256, 512}) {
      blocks_->push_back(ResidualBlock(maps, channels(usual), usual == 64 ? 1 : 2, generator));
      blocks_->push_back(ResidualBlock(maps, channels(usual), 1, generator));
    }
    register_module("blocks", blocks_);
    make_head(maps.channels, maps.flops, options.num_classes, generator);
  }

  at::Tensor embed(const at::Tensor& images_BCHW) override {
    return blocks_->forward(stem_->forward(images_BCHW).relu_()).mean({2, 3});
  }

 private:
  ConvNorm stem_{nullptr};
  torch::nn::Sequential blocks_;
};

}  // namespace

// On a CPU oneDNN corrupts the heap for few channels in channels-last memory on two threads.
at::Tensor ImageNetwork::features(const at::Tensor& images_BCHW) {
  return embed(images_BCHW.is_cuda() ? images_BCHW.contiguous(at::MemoryFormat::ChannelsLast)
                                     : images_BCHW);
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
  if (name == "cnn") return std::make_shared<SmallCnn>(options, generator);
  if (name == "mobilenetv2") return std::make_shared<MobileNetV2>(options, generator);
  if (name == "resnet18") return std::make_shared<ResNet18>(options, generator);
  fail_usage("unknown image network '{}'; {}", name, did_you_mean(name, image_network_names()));
}

namespace {

constexpr int64_t kGroups = 3, kStemChannels = 16;

Convolution make_convolution(FeatureMapShape& maps, int64_t outputs, int64_t kernel, int64_t stride,
                             const at::Generator& generator) {
  const int64_t fans = (maps.channels + outputs) * kernel * kernel;
  Convolution made(maps,
                   ConvolutionOptions{.out_channels = outputs,
                                      .kernel_size = kernel,
                                      .stride = stride,
                                      .bias = true,
                                      .pads_end_only = true},
                   generator);
  const torch::NoGradGuard no_grad;
  xavier_uniform(made->weight, fans, generator);
  made->bias.zero_();
  return made;
}

/// Batch normalisation, ReLU and a 3x3 convolution.
class NormConvImpl : public torch::nn::Module {
 public:
  NormConvImpl(FeatureMapShape& maps, int64_t outputs, int64_t stride,
               const at::Generator& generator) {
    norm_ = register_module("norm", BatchNorm2d(keras_batch_norm_options(maps.channels)));
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
  WideBlockImpl(FeatureMapShape& maps, int64_t outputs, int64_t stride,
                const at::Generator& generator) {
    FeatureMapShape beside{maps.channels, maps.side};
    first_ =
        register_module("first", NormConv(maps, outputs, std::max<int64_t>(1, stride), generator));
    second_ = register_module("second", NormConv(maps, outputs, 1, generator));
    if (stride == 0) return;
    shortcut_ =
        register_module("shortcut", make_convolution(beside, outputs, 1, stride, generator));
    maps.flops += beside.flops;
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

torch::nn::BatchNormOptions keras_batch_norm_options(int64_t channels) {
  return torch::nn::BatchNormOptions(channels).eps(1e-3).momentum(0.01);
}

int64_t wide_channels(int64_t group, double widening) {
  return static_cast<int64_t>(static_cast<double>(kStemChannels << group) * widening);
}

WideResNetImpl::WideResNetImpl(const FeatureMapShape& images, int64_t num_blocks, double widening,
                               bool has_last_group, const at::Generator& generator)
    : maps_(images) {
  stem_ = register_module("stem", make_convolution(maps_, kStemChannels, 3, 1, generator));
  for (int64_t g = 0; g < kGroups; ++g) {
    const int64_t channels = wide_channels(g, widening), stride = g == 0 ? 1 : 2;
    if (g + 1 == kGroups && !has_last_group) {
      groups_->push_back(NormConv(maps_, channels, stride, generator));
      break;
    }
    for (int64_t b = 0; b < num_blocks; ++b) {
      groups_->push_back(WideBlock(maps_, channels, b == 0 ? stride : 0, generator));
    }
  }
  register_module("groups", groups_);
}

}  // namespace moesaic::nn
