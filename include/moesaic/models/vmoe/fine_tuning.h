// SPDX-License-Identifier: Apache-2.0
// How tensors of a V-MoE are converted where fine-tuning begins.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/models/vmoe/config.h"

namespace moesaic {

/// Resizes a position embedding [1, T, d] to T' = `tokens` tokens. The rows of a square grid are
/// interpolated linearly with aligned corners along both axes: output k of n reads at position
/// k * ((s - 1) / (n - 1)) of s, computed in float64, and is 0 where rounding takes that past
/// s - 1, as in the reference. The row of a class token (T is a square plus 1) is copied, or
/// dropped where T' has none. For T = T' nothing changes. Throws Error (usage) for lengths that
/// are neither a square nor a square plus 1, and where only T' has a class token.
at::Tensor vit_zoom(const at::Tensor& embedding_1Td, int64_t tokens);
/// Returns why vit_zoom() cannot turn the first shape into the second, "" if it can.
std::string vit_zoom_problem(const std::vector<int64_t>& from, const std::vector<int64_t>& to);

/// Returns a tensor of a network's state, float32 on the CPU, with rows of zeros for the experts
/// that pruning removed, which give a token routed to them nothing as well.
at::Tensor with_removed_experts(const VMoEConfig& config, const std::string& name,
                                const at::Tensor& values);

}  // namespace moesaic
