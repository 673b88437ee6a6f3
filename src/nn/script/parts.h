// SPDX-License-Identifier: Apache-2.0
// Parts of the TorchScript form of a mixture-of-experts layer.
#pragma once

#include <string>
#include <vector>

#include "moesaic/nn/script.h"
#include "moesaic/ops/activation.h"

namespace moesaic::script {

/// Returns one_by_one(), see make_experts(). `lines` and the expression `result`, of `outputs`
/// columns, are of one expert: `x` are its rows, and each of the stacked `tensors` is its own part.
std::string one_by_one(int64_t outputs, const std::vector<std::string>& tensors,
                       const std::string& lines, const std::string& result);

/// Returns the expression of activation(hidden).
std::string text_of(Activation activation);

}  // namespace moesaic::script
