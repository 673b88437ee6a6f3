// SPDX-License-Identifier: Apache-2.0
#include "gpu_layer.h"

#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/_grouped_mm.h>
#include <torch/torch.h>

#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"

namespace moesaic::bench {
namespace {

constexpr int kQueued = 50;  // calls between two waits, where one is short

at::TensorOptions gpu_options() {
  return at::device(at::kCUDA).dtype(at::kBFloat16);
}

}  // namespace

using at::Tensor;

std::function<void()> until_done(const std::function<void()>& work, int calls) {
  return [=] {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < calls; ++i) work();
    torch::cuda::synchronize();
  };
}
Times short_times(const std::function<void()>& ours, const std::function<void()>& peer) {
  const Times times = alternate(until_done(ours, kQueued), until_done(peer, kQueued));
  return {times.ours / kQueued, times.peer / kQueued};
}

EagerLayer gpu_layer(int64_t experts, int64_t k, bool learns) {
  at::manual_seed(1);
  const auto draw = [&](at::IntArrayRef shape, double scale) {
    return (at::randn(shape, gpu_options()) * scale).requires_grad_(learns);
  };
  return {draw({kGpuWidth, experts}, 0.05), draw({experts, kGpuWidth, kGpuHidden}, 0.03),
          draw({experts, kGpuHidden}, 0.1), draw({experts, kGpuHidden, kGpuWidth}, 0.03),
          draw({experts, kGpuWidth}, 0.1),  k};
}
Tensor gpu_tokens(int64_t tokens, bool learns) {
  return at::randn({tokens, kGpuWidth}, gpu_options()).requires_grad_(learns);
}

Tensor route_and_compute(const EagerLayer& layer, const Tensor& x_Td,
                         const std::vector<int64_t>& kept) {
  const Tensor logits = at::mm(x_Td, layer.router).to(at::kFloat);
  const Routing routing = route(logits, {.k = layer.k, .kept = kept});
  return routed_mlp(x_Td, routing, {layer.w1, layer.b1, layer.w2, layer.b2}, Activation::gelu_tanh);
}

Tensor composed_layer(const EagerLayer& layer, const Tensor& x_Td) {
  auto [gates, chosen] =
      at::topk(at::softmax(at::mm(x_Td, layer.router).to(at::kFloat), -1), layer.k, -1);
  const Tensor flat = chosen.reshape(-1);
  const auto [expert, order] = at::sort(flat, /*stable=*/true, 0, /*descending=*/false);
  const Tensor token = at::floor_divide(order, layer.k);
  const Tensor ends = at::one_hot(flat, layer.experts()).sum(0).cumsum(0).to(at::kInt);
  const Tensor hidden = at::gelu(at::_grouped_mm(x_Td.index_select(0, token), layer.w1, ends) +
                                     layer.b1.index_select(0, expert),
                                 "tanh");
  const Tensor out = at::_grouped_mm(hidden, layer.w2, ends) + layer.b2.index_select(0, expert);
  const Tensor weight = gates.reshape(-1).index_select(0, order).unsqueeze(1).to(at::kBFloat16);
  return at::zeros_like(x_Td).index_add(0, token, out * weight);
}

Tensor fused_dense(const EagerLayer& layer, const Tensor& rows_Ad) {
  const Tensor hidden = at::_addmm_activation(layer.b1[0], rows_Ad, layer.w1[0], 1, 1,
                                              /*use_gelu=*/true);
  return at::addmm(layer.b2[0], hidden, layer.w2[0]);
}

std::function<void()> gpu_forward(const GpuLayer& f, const EagerLayer& layer, const Tensor& x) {
  return until_done([=] { f(layer, x); });
}
std::function<void()> gpu_train(const GpuLayer& f, const EagerLayer& layer, const Tensor& x) {
  const Tensor gradient = at::randn_like(x.detach());
  return [=] {
    for (const Tensor& parameter : layer.parameters()) parameter.mutable_grad() = Tensor();
    x.mutable_grad() = Tensor();
    f(layer, x).backward(gradient);
    torch::cuda::synchronize();
  };
}
Tensor gpu_ours(const EagerLayer& layer, const Tensor& x) {
  return route_and_compute(layer, x);
}

}  // namespace moesaic::bench
