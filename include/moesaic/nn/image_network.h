// SPDX-License-Identifier: Apache-2.0
// Convolutional networks for small images: the experts of "Towards Understanding Mixture of
// Experts in Deep Learning", section 6.2.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/nn/batch_shard.h"

namespace moesaic::nn {

// Batch normalisation whose statistics are those of the whole batch, also where processes share it.

/// Thrown by batch normalisation in training where a channel has a single value, which has no
/// variance.
class SingleValueError : public Error {
 public:
  /// Sets the one-line message.
  SingleValueError()
      : Error(ErrorKind::usage,
              "batch normalisation in training needs more than one value of a channel") {}
};

/// Computes batch normalisation of x [N, C, ...] in training by the moments of the batches of all
/// processes in `process_group`; the running statistics are updated by `momentum`. A channel with a
/// single value has no variance and is normalised by the running statistics.
at::Tensor sync_batch_norm(const at::Tensor& x,
                           const std::shared_ptr<const ProcessGroup>& process_group,
                           const torch::nn::BatchNormOptions& options, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var);

/// Batch normalisation of x [N, C, ...]; in training by sync_batch_norm() where processes share a
/// batch. Alone it throws SingleValueError.
template <class Norm>
class BatchNormImpl : public Norm, public DataParallelModule {
 public:
  using Norm::Norm;

  /// Computes x [N, C, ...] -> [N, C, ...].
  at::Tensor forward(const at::Tensor& x) {
    const auto process_group = batch_shard().process_group();
    if (!process_group && this->is_training() && x.numel() == x.size(1)) throw SingleValueError();
    if (!process_group || !this->is_training()) return Norm::forward(x);
    this->num_batches_tracked += 1;
    return sync_batch_norm(x, process_group, this->options, this->weight, this->bias,
                           this->running_mean, this->running_var);
  }
};

/// torch::nn::BatchNorm1d and BatchNorm2d for batches that processes share.
using BatchNorm1dImpl = BatchNormImpl<torch::nn::BatchNorm1dImpl>;
TORCH_MODULE(BatchNorm1d);
using BatchNorm2dImpl = BatchNormImpl<torch::nn::BatchNorm2dImpl>;
TORCH_MODULE(BatchNorm2d);

/// Shape of the feature maps at some depth of a network, and the cost of computing them.
struct FeatureMapShape {
  int64_t channels = 0, side = 0;
  double flops = 0.0;  ///< FLOPs of all layers so far for one image.
};

/// Shape of a Convolution.
struct ConvolutionOptions {
  int64_t out_channels = 0;
  int64_t kernel_size = 3;  ///< Odd; the border is padded by kernel_size / 2 zeros.
  int64_t stride = 1;
  int64_t groups = 1;
  bool bias = false;
  bool pads_end_only = false;  ///< Whether an even map gets, with stride 2, all of its border at
                               ///< its end, as TensorFlow pads.
};

/// A convolution of square feature maps: `weight` [out_channels, C / groups, kernel_size,
/// kernel_size] and, with `options.bias`, `bias` [out_channels], both initially uniform on +-1 /
/// sqrt(fan_in).
class ConvolutionImpl : public torch::nn::Module {
 public:
  /// `maps` holds the shape of the input and, after the call, that of the output.
  ConvolutionImpl(FeatureMapShape& maps, ConvolutionOptions options,
                  const at::Generator& generator);

  /// Convolves x_BCHW [B, C, S, S] -> [B, out_channels, ceil(S / stride), ceil(S / stride)].
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
  /// Draws the initial values from `generator` and sets `maps` to those behind the layer.
  ConvNormImpl(FeatureMapShape& maps, ConvolutionOptions options, const at::Generator& generator);
  /// Computes x_BCHW [B, C, H, W] -> [B, C', H', W'].
  at::Tensor forward(const at::Tensor& x_BCHW);

  Convolution conv{nullptr};
  BatchNorm2d norm{nullptr};
};
TORCH_MODULE(ConvNorm);

/// Shape of an ImageNetwork.
struct ImageNetworkOptions {
  int64_t channels = 3, side = 32;  ///< Shape of the images.
  int64_t num_classes = 10;
  double width = 1.0;  ///< Factor on the number of channels, rounded, at least one channel.
};

/// A convolutional network of images with a linear head.
class ImageNetwork : public torch::nn::Module {
 public:
  /// Computes the latent embedding of images_BCHW [B, C, S, S] -> [B, d], on a GPU in channels-last
  /// memory, which its convolutions are made for.
  at::Tensor features(const at::Tensor& images_BCHW);

  /// Returns the FLOPs of one image: multiplications and additions of its matrix products.
  double flops() const { return feature_flops_ + 2.0 * static_cast<double>(head->weight.numel()); }
  /// Gives the network a new head of zeros with `classes` outputs.
  void reset_head(int64_t classes);

  torch::nn::Linear head{nullptr};  ///< Linear head, features -> classes.

 protected:
  /// Computes features() of images in any memory format.
  virtual at::Tensor embed(const at::Tensor& images_BCHW) = 0;

  /// Makes the head on `width` features, whose computation takes `flops`.
  void make_head(int64_t width, double flops, int64_t classes, const at::Generator& generator);

 private:
  double feature_flops_ = 0.0;
};

/// Returns the names of the networks:
///
///     cnn: two 3x3 convolutions with 64 and 128 filters, each followed by ReLU and 2 x 2 max
///         pooling, and a linear layer over the whole map.
///     mobilenetv2: Sandler et al., arXiv:1801.04381, for 32 x 32 images: stem and first two
///         stages without stride, ReLU, and a 1x1 convolution in a shortcut that changes channels.
///     resnet18: He et al., arXiv:1512.03385, for 32 x 32 images: a 3x3 stem without stride and
///         without max pooling, four stages of 64 to 512 channels.
std::vector<std::string> image_network_names();

/// Builds the network of this name. Throws Error (usage) for a name not in image_network_names().
std::shared_ptr<ImageNetwork> make_image_network(const std::string& name,
                                                 const ImageNetworkOptions& options,
                                                 const at::Generator& generator);

// Wide residual networks (Zagoruyko and Komodakis, arXiv:1605.07146), with the initial values, the
// normalisation and the padding of Keras, by which the pMoE paper's code was written.

/// Returns the channels of group g of a WideResNet, from 0: 16, 32 and 64 times `widening`, rounded
/// down.
int64_t wide_channels(int64_t group, double widening);

/// A wide residual network up to its last feature map: a 3x3 stem of 16 channels and three groups
/// of blocks. A block is twice (batch normalisation, ReLU, 3x3 convolution) plus a shortcut, in the
/// first block of a group a 1x1 convolution of the block's input. The second and the third group
/// halve the map. With the final linear layer it has 6 * blocks + 4 layers.
class WideResNetImpl : public torch::nn::Module {
 public:
  /// `images` is their shape; a group has `num_blocks` blocks. Without `has_last_group` batch
  /// normalisation, ReLU and a 3x3 convolution of stride 2 to the last group's channels take its
  /// place. Draws the initial values from `generator`.
  WideResNetImpl(const FeatureMapShape& images, int64_t num_blocks, double widening,
                 bool has_last_group, const at::Generator& generator);

  /// Computes images_BCHW [B, C, S, S] -> [B, C', ceil(S / 4), ceil(S / 4)], without a
  /// normalisation of the map.
  at::Tensor forward(const at::Tensor& images_BCHW) {
    return groups_->forward(stem_->forward(images_BCHW));
  }

  /// Returns the shape of the map and the FLOPs of one image.
  const FeatureMapShape& maps() const { return maps_; }

 private:
  FeatureMapShape maps_;
  Convolution stem_{nullptr};
  torch::nn::Sequential groups_;
};
TORCH_MODULE(WideResNet);

/// Returns options of batch normalisation with epsilon 1e-3 and momentum 0.01, which Keras calls
/// 0.99.
torch::nn::BatchNormOptions keras_batch_norm_options(int64_t channels);

}  // namespace moesaic::nn
