// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/clip.h"

#include <torch/torch.h>

namespace moesaic {

at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return at::zeros({}, at::kFloat);
  const torch::NoGradGuard no_grad;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)), 2);
}

void clip_gradients(std::vector<at::Tensor>& gradients, double norm, double limit) {
  if (limit <= 0.0 || norm < limit || gradients.empty()) return;
  const torch::NoGradGuard no_grad;
  at::_foreach_mul_(gradients, limit / norm);
}

void clip_gradient_values(std::vector<at::Tensor>& gradients, double limit) {
  if (limit <= 0.0) return;
  const torch::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients) gradient.clamp_(-limit, limit);
}

}  // namespace moesaic
