// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "moesaic/nn/encoder_block.h"

namespace moesaic::nn {

/// Activation checkpointing: returns block->forward(x_BTd, random) but keeps only x_BTd for
/// backward, which computes the block again with the same random draws and under the same autocast,
/// so that the gradients have the same bits. Without gradients it is the plain forward pass.
EncoderBlockImpl::Output forward_recomputed(const std::shared_ptr<EncoderBlockImpl>& block,
                                            const at::Tensor& x_BTd, const at::Generator& random);

}  // namespace moesaic::nn
