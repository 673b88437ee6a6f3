// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/linear.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <limits>

#include "cpu/linear.h"

namespace moesaic {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class Linear : public torch::autograd::Function<Linear> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x_Rd, const Tensor& weight_od,
                        const Tensor& b_o) {
    context->save_for_backward({x_Rd, weight_od});
    return ops::linear_cpu(x_Rd, weight_od, b_o);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const Tensor grad_Ro = grads[0].contiguous();
    if (at::GradMode::is_enabled()) {  // a second derivative is wanted
      return {grad_Ro.mm(saved[1]), grad_Ro.t().mm(saved[0]), grad_Ro.sum(0)};
    }
    const auto [x, weight] = ops::linear_backward_cpu(grad_Ro, saved[0], saved[1]);
    return {x, weight, grad_Ro.sum(0)};
  }
};

/// Are there rows enough to make up for packing the weights, and numbers that the kernels know?
bool suits_own_kernels(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t rows) {
  constexpr int64_t kFewRows = 32;
  const auto type = x.scalar_type();
  return x.is_cpu() && (type == at::kFloat || type == at::kDouble) &&
         weight.scalar_type() == type && bias.scalar_type() == type && weight.is_contiguous() &&
         bias.is_contiguous() && !at::autocast::is_autocast_enabled(at::kCPU) && rows >= kFewRows &&
         rows <= std::numeric_limits<int32_t>::max();
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const int64_t width = x.dim() > 0 ? x.size(-1) : 0;
  const int64_t rows = width > 0 ? x.numel() / width : 0;
  if (width != weight.size(1) || !suits_own_kernels(x, weight, bias, rows)) {
    return at::linear(x, weight, bias);
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return Linear::apply(x.reshape({rows, width}).contiguous(), weight, bias).view(shape);
}

}  // namespace moesaic
