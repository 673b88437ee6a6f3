// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/router_product.h"

#include <torch/torch.h>

#include "check.h"
#include "cpu/router_product.h"

namespace moesaic {
namespace {

class RouterProduct : public torch::autograd::Function<RouterProduct> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return ops::router_product_cpu(x, weight);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    at::Tensor grad_x, grad_weight;
    if (context->needs_input_grad(0)) grad_x = grads[0].mm(saved[1]);
    if (context->needs_input_grad(1)) grad_weight = grads[0].t().mm(saved[0]);
    return {grad_x, grad_weight};
  }
};

}  // namespace

at::Tensor router_product(const at::Tensor& x_Td, const at::Tensor& weight_Ed) {
  constexpr const char* kOp = "router_product";
  ops::check_shape(kOp, "x", x_Td, {-1, -1});
  ops::check_shape(kOp, "weight", weight_Ed, {-1, x_Td.size(1)});
  ops::check_same_dtype(kOp, "weight", weight_Ed, x_Td);
  ops::check_same_device(kOp, "weight", weight_Ed, x_Td);
  if (!ops::suits_router_kernel(x_Td, weight_Ed)) return at::mm(x_Td, weight_Ed.t());
  return RouterProduct::apply(x_Td.contiguous(), weight_Ed.contiguous());
}

}  // namespace moesaic
