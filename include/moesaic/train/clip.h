// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace moesaic {

/// Returns the global Euclidean norm of gradients, a scalar of their dtype (float32 without any).
at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients);

/// Clips by global norm in place (Pascanu et al., arXiv:1211.5063): gradients with `norm` >=
/// `limit` are multiplied by limit / norm, others keep their bits. `norm` is a scalar on the
/// gradients' device, which alone decides: nothing waits for it. `limit` 0 clips nothing.
void clip_gradients(std::vector<at::Tensor>& gradients, const at::Tensor& norm, double limit);

/// Clips every value to [-limit, limit] in place. `limit` 0 clips nothing.
void clip_gradient_values(std::vector<at::Tensor>& gradients, double limit);

}  // namespace moesaic
