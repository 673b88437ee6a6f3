// SPDX-License-Identifier: Apache-2.0
#include "eager_moe.h"

#include <torch/torch.h>

namespace moesaic::bench {
namespace {

using at::Tensor;

std::pair<Tensor, Tensor> choose(const EagerLayer& layer, const Tensor& x_Td) {
  const Tensor logits = at::mm(x_Td.to(layer.router.scalar_type()), layer.router);
  auto [gates, experts] = at::topk(at::softmax(logits, -1), layer.k, -1);
  return {gates.to(x_Td.scalar_type()), experts};
}

Tensor expert(const EagerLayer& layer, int64_t e, const Tensor& rows) {
  const Tensor hidden = at::gelu(at::addmm(layer.b1[e], rows, layer.w1[e]), "tanh");
  return at::addmm(layer.b2[e], hidden, layer.w2[e]);
}

}  // namespace

Tensor turned_over(const Tensor& w) {
  return w.transpose(1, 2).contiguous().transpose(1, 2);
}

EagerLayer EagerLayer::to(at::ScalarType type) const {
  return {router, w1.to(type), b1.to(type), w2.to(type), b2.to(type), k};
}

EagerLayer EagerLayer::turned_over() const {
  return {router, bench::turned_over(w1), b1, bench::turned_over(w2), b2, k};
}

EagerLayer EagerLayer::trainable() const {
  const auto learns = [](const Tensor& tensor) { return tensor.detach().requires_grad_(); };
  return {learns(router), learns(w1), learns(b1), learns(w2), learns(b2), k};
}

EagerLayer EagerLayer::pruned(const std::vector<int64_t>& kept) const {
  const Tensor index = torch::tensor(kept).to(w1.device());
  const auto of_kept = [&](const Tensor& tensor) { return tensor.index_select(0, index); };
  return {router, of_kept(w1), of_kept(b1), of_kept(w2), of_kept(b2), k};
}

EagerLayer make_layer(int64_t width, int64_t hidden, int64_t experts, int64_t k) {
  return {at::randn({width, experts}) * 0.05, at::randn({experts, width, hidden}) * 0.03,
          at::randn({experts, hidden}) * 0.1, at::randn({experts, hidden, width}) * 0.03,
          at::randn({experts, width}) * 0.1,  k};
}

Tensor masked_loop(const EagerLayer& layer, const Tensor& x_Td) {
  const auto [gates, chosen] = choose(layer, x_Td);
  Tensor y = at::zeros_like(x_Td);
  for (int64_t e = 0; e < layer.experts(); ++e) {
    const Tensor where = at::nonzero(chosen == e);
    if (where.size(0) == 0) continue;
    const Tensor token = where.select(1, 0), rank = where.select(1, 1);
    const Tensor out = expert(layer, e, x_Td.index_select(0, token));
    y = y.index_add(0, token, out * gates.index({token, rank}).unsqueeze(1));
  }
  return y;
}

Tensor sorted_loop(const EagerLayer& layer, const Tensor& x_Td) {
  const auto [gates, chosen] = choose(layer, x_Td);
  const Tensor flat = chosen.reshape(-1);
  const Tensor order = std::get<1>(at::sort(flat, /*stable=*/true, 0, /*descending=*/false));
  const Tensor token = at::floor_divide(order, layer.k);
  const Tensor counts = at::bincount(flat, {}, layer.experts());
  const Tensor rows = x_Td.index_select(0, token);
  std::vector<Tensor> outputs;
  for (int64_t e = 0, begin = 0; e < layer.experts(); ++e) {
    const int64_t count = counts[e].item<int64_t>();
    if (count > 0) outputs.push_back(expert(layer, e, rows.narrow(0, begin, count)));
    begin += count;
  }
  const Tensor weight = gates.reshape(-1).index_select(0, order).unsqueeze(1);
  return at::zeros_like(x_Td).index_add(0, token, at::cat(outputs) * weight);
}

Tensor dense_mlp(const EagerLayer& layer, const Tensor& rows_Ad) {
  return expert(layer, 0, rows_Ad);
}

std::vector<Tensor> eager_routing(const Tensor& logits_TE, int64_t k, int64_t capacity) {
  const int64_t experts = logits_TE.size(1);
  auto [gates, chosen] = at::topk(at::softmax(logits_TE, -1), k, -1);
  // First choices queue before second ones.
  const Tensor queue = chosen.t().reshape(-1);
  const Tensor place = at::cumsum(at::one_hot(queue, experts), 0).gather(1, queue.unsqueeze(1));
  const Tensor fits = place.squeeze(1) <= capacity;
  const Tensor expert = at::where(fits, queue, experts);
  const Tensor order = std::get<1>(at::sort(expert, /*stable=*/true, 0, /*descending=*/false));
  const Tensor counts = at::bincount(expert, {}, experts + 1);
  return {at::remainder(order, logits_TE.size(0)), gates.t().reshape(-1).index_select(0, order),
          counts};
}

}  // namespace moesaic::bench
