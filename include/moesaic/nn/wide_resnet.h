// SPDX-License-Identifier: Apache-2.0
// Wide residual networks (Zagoruyko and Komodakis, arXiv:1605.07146), with the initial values, the
// normalisation and the padding of Keras, by which the pMoE paper's code was written.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>

#include "moesaic/nn/convolution.h"

namespace moesaic::nn {

struct WideResNetOptions {
  int64_t channels = 3, side = 32;  ///< Shape of the images.
  int64_t blocks = 1;               ///< Residual blocks of a group.
  double widening = 10.0;           ///< Groups have 16, 32 and 64 times as many channels, rounded
                                    ///< down.
  bool last_group = true;  ///< False: batch normalisation, ReLU and a 3x3 convolution of stride 2
                           ///< to the last group's channels take its place.

  /// Returns the channels of group g, counted from 0.
  int64_t channels_of(int64_t group) const;
};

/// A wide residual network up to its last feature map: a 3x3 stem of 16 channels and three groups
/// of blocks, each twice (batch normalisation, ReLU, 3x3 convolution) beside a shortcut, which in
/// the first block of a group is a 1x1 convolution of the block's input. The second and the third
/// group halve the map. With the final linear layer it has 6 blocks + 4 layers.
class WideResNetImpl : public torch::nn::Module {
 public:
  WideResNetImpl(const WideResNetOptions& options, const at::Generator& generator);

  /// Computes images_BCHW [B, C, S, S] -> [B, channels_of(2), ceil(S / 4), ceil(S / 4)], without a
  /// normalisation of the map.
  at::Tensor forward(const at::Tensor& images_BCHW) {
    return groups_->forward(stem_->forward(images_BCHW));
  }

  /// Returns the shape of the map and the FLOPs of one image.
  const Maps& maps() const { return maps_; }

 private:
  Maps maps_;
  Convolution stem_{nullptr};
  torch::nn::Sequential groups_;
};
TORCH_MODULE(WideResNet);

/// Returns options of batch normalisation with epsilon 1e-3 and momentum 0.01, which Keras calls
/// 0.99.
torch::nn::BatchNormOptions wide_norm(int64_t channels);

}  // namespace moesaic::nn
