// SPDX-License-Identifier: Apache-2.0
// The example of docs/operators.md in C++: one layer of experts, written out.
#include <moesaic/ops/combine.h>
#include <moesaic/ops/dispatch.h>
#include <moesaic/ops/grouped_mlp.h>
#include <moesaic/ops/route.h>
#include <torch/torch.h>

#include <iomanip>
#include <iostream>

int main() {
  const int64_t tokens = 256, experts = 8, width = 16, hidden = 32;
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({tokens, width});
  const at::Tensor router = torch::randn({width, experts}).set_requires_grad(true);
  const moesaic::ExpertWeights weights{
      torch::randn({experts, width, hidden}), torch::zeros({experts, hidden}),
      torch::randn({experts, hidden, width}), torch::zeros({experts, width})};

  const moesaic::Routing routing = moesaic::route(
      x.matmul(router), {.k = 2, .gate = moesaic::Gate::softmax_all, .capacity = {.factor = 1.0}});
  const at::Tensor rows = moesaic::grouped_mlp(moesaic::dispatch(x, routing), routing.offsets,
                                               weights, moesaic::Activation::gelu);
  const at::Tensor y = moesaic::combine(rows, routing);  // [tokens, width]

  y.square().mean().backward();  // through the gates into the router
  std::cout << "rows of each expert:";
  for (int64_t e = 0; e < experts; ++e) std::cout << ' ' << routing.offsets.diff()[e].item<int>();
  std::cout << "\nnorm of the router's gradient: " << std::setprecision(2)
            << router.grad().norm().item<float>() << '\n';
}
