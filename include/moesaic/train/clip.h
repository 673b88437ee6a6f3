// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace moesaic {

/// Euclidean norm of all gradients together, a scalar tensor of their dtype (float32 without any).
at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients);

/// In place: gradients whose global norm is at least `limit` are multiplied by limit / norm, others
/// stay as they are to the bit. `limit` 0 clips nothing. Pascanu et al., arXiv:1211.5063.
void clip_gradients(std::vector<at::Tensor>& gradients, double norm, double limit);

/// In place: every number is brought into [-limit, limit]. `limit` 0 clips nothing.
void clip_gradient_values(std::vector<at::Tensor>& gradients, double limit);

}  // namespace moesaic
