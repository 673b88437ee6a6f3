// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "moesaic/nn/encoder_block.h"

namespace moesaic::nn {

/// block->forward(x_BTd, random), of which only x_BTd is kept: backward computes the block again,
/// with the same random draws and under the same autocast, so that the gradients have the same
/// bits. Where no gradient is wanted it is that forward pass.
EncoderBlockImpl::Output forward_recomputed(const std::shared_ptr<EncoderBlockImpl>& block,
                                            const at::Tensor& x_BTd, const at::Generator& random);

}  // namespace moesaic::nn
