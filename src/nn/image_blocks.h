// SPDX-License-Identifier: Apache-2.0
// Functions that make each kind of image network.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "moesaic/nn/image_network.h"

namespace moesaic::nn {

inline int64_t scaled_channels(int64_t usual, const ImageNetworkOptions& options) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(usual) * options.width));
}

std::shared_ptr<ImageNetwork> make_small_cnn(const ImageNetworkOptions& options,
                                             const at::Generator& generator);
std::shared_ptr<ImageNetwork> make_mobilenet_v2(const ImageNetworkOptions& options,
                                                const at::Generator& generator);
std::shared_ptr<ImageNetwork> make_resnet18(const ImageNetworkOptions& options,
                                            const at::Generator& generator);

}  // namespace moesaic::nn
