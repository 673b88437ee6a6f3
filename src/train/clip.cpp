// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/clip.h"

#include <torch/torch.h>

namespace moesaic {

at::Tensor gradient_norm(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return at::zeros({}, at::kFloat);
  const torch::NoGradGuard no_grad;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)), 2);
}

void clip_gradients(std::vector<at::Tensor>& gradients, const at::Tensor& norm, double limit) {
  if (limit <= 0.0 || gradients.empty()) return;
  const torch::NoGradGuard no_grad;
  // On the CPU the norm is at hand, and knowing it saves a pass over the gradients.
  if (norm.is_cpu() && norm.item<double>() < limit) return;
  const at::Tensor wide = norm.to(at::kDouble);
  const at::Tensor factor = at::full_like(wide, limit).div_(wide).clamp_max_(1.0);
  at::_foreach_mul_(gradients, factor.to(gradients[0].scalar_type()));
}

void clip_gradient_values(std::vector<at::Tensor>& gradients, double limit) {
  if (limit <= 0.0) return;
  const torch::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients) gradient.clamp_(-limit, limit);
}

}  // namespace moesaic
