// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "moesaic/models/model.h"

namespace moesaic {

/// Throws Error unless inputs are [B, C, H, W] of the model's input_shape(); `name` is the model's,
/// `what` says what its inputs are.
void check_input_shape(const Model& model, const std::string& name, const char* what,
                       const at::Tensor& inputs_BCHW);

}  // namespace moesaic
