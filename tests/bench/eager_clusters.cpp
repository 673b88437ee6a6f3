// SPDX-License-Identifier: Apache-2.0
#include "eager_clusters.h"

#include <torch/torch.h>

#include <vector>

namespace moesaic::bench {
namespace {

using at::Tensor;

Tensor twice_softmax_loss(const Tensor& logits, const Tensor& labels) {
  return at::cross_entropy_loss(logits.softmax(1), labels);
}

}  // namespace

ClusterGradients dense_dispatch_step(const ClusterStep& step) {
  const Tensor w = step.w.detach().requires_grad_(), b = step.b.detach().requires_grad_();
  const Tensor router = step.router.detach().requires_grad_();
  const int64_t count = step.x_NPd.size(0), width = step.x_NPd.size(2);
  const int64_t experts = w.size(0), filters = w.size(2);
  const Tensor scores = step.x_NPd.sum(1).mm(router.t()) + step.noise_NE;
  const auto [gate, choice] = scores.max(1);
  const Tensor one_hot = at::one_hot(choice, experts).to(at::kFloat);
  const Tensor sent = at::einsum("nf,ne->enf", {step.x_NPd.flatten(1), one_hot});
  std::vector<Tensor> outputs;
  for (int64_t e = 0; e < experts; ++e) {
    const Tensor seen = at::conv1d(sent[e].unsqueeze(1), w[e].t().unsqueeze(1), b[e], width);
    outputs.push_back(seen.pow(3).sum(2).view({count, 2, filters / 2}).sum(2));
  }
  const Tensor combined =
      at::einsum("enc,ne->nc", {at::stack(outputs), one_hot * gate.unsqueeze(1)});
  const Tensor loss = twice_softmax_loss(combined, step.labels_N);
  loss.backward();
  return {loss.detach(), w.grad(), b.grad(), router.grad()};
}

ClusterGradients closed_form_step(const ClusterStep& step) {
  const torch::NoGradGuard no_grad;
  const int64_t count = step.x_NPd.size(0), patches = step.x_NPd.size(1),
                width = step.x_NPd.size(2);
  const int64_t experts = step.w.size(0), filters = step.w.size(2);
  const Tensor sums = step.x_NPd.sum(1);
  const auto [gate, choice] = (sums.mm(step.router.t()) + step.noise_NE).max(1);
  std::vector<Tensor> index, rows, seen;
  Tensor output = at::empty({count, 2}, sums.options());
  for (int64_t e = 0; e < experts; ++e) {
    index.push_back(choice.eq(e).nonzero().squeeze(1));
    rows.push_back(step.x_NPd.index_select(0, index[e]).view({-1, width}));
    seen.push_back(at::addmm(step.b[e], rows[e], step.w[e]));
    const Tensor cubes = seen[e] * seen[e] * seen[e];
    output.index_copy_(0, index[e], cubes.view({-1, patches, 2, filters / 2}).sum({1, 3}));
  }
  const Tensor logits = output * gate.unsqueeze(1);
  const Tensor p = logits.softmax(1), q = p.softmax(1);
  const Tensor wanted = at::one_hot(step.labels_N, 2).to(at::kFloat);
  const Tensor grad_p = (q - wanted) / static_cast<double>(count);
  const Tensor grad_logits = p * (grad_p - (grad_p * p).sum(1, true));
  const Tensor grad_gate = (grad_logits * output).sum(1);
  const Tensor grad_output = grad_logits * gate.unsqueeze(1);
  ClusterGradients found{-(q.log() * wanted).sum(1).mean(), at::zeros_like(step.w),
                         at::zeros_like(step.b), at::zeros_like(step.router)};
  for (int64_t e = 0; e < experts; ++e) {
    const Tensor grad = grad_output.index_select(0, index[e])
                            .repeat_interleave(filters / 2, 1)
                            .repeat_interleave(patches, 0);
    const Tensor grad_seen = 3.0 * seen[e] * seen[e] * grad;
    found.w[e].copy_(rows[e].t().mm(grad_seen));
    found.b[e].copy_(grad_seen.sum(0));
    found.router[e].copy_(
        grad_gate.index_select(0, index[e]).unsqueeze(0).mm(sums.index_select(0, index[e]))[0]);
  }
  return found;
}

void descend(ClusterStep& step, const ClusterGradients& gradients) {
  const torch::NoGradGuard no_grad;
  const Tensor norm = (gradients.w.square().sum({1, 2}) + gradients.b.square().sum(1)).sqrt();
  const Tensor rate = 0.001 / norm.clamp_min(1e-30);
  step.w.sub_(gradients.w * rate.view({-1, 1, 1}));
  step.b.sub_(gradients.b * rate.view({-1, 1}));
  step.router.sub_(0.1 * gradients.router);
}

}  // namespace moesaic::bench
