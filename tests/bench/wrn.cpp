// SPDX-License-Identifier: Apache-2.0
// Training steps of the pMoE paper's wide residual networks at the sizes of its CIFAR-10
// experiments on all threads: the mixture's experts against what the released code computes, and
// the whole mixture against the plain network.
#include <torch/torch.h>

#include "bench.h"
#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/patches.h"
#include "moesaic/papers/pmoe.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

constexpr int64_t kImages = 32;

/// The experts on whole maps that are 0 where nothing was selected.
Tensor masked_maps(const nn::MapExpertsImpl& experts, const Tensor& map_BCSS,
                   const Tensor& weights_TK) {
  const int64_t images = map_BCSS.size(0), side = map_BCSS.size(2);
  std::vector<Tensor> outputs;
  for (int64_t e = 0; e < experts.num_experts(); ++e) {
    const Tensor gate = weights_TK.select(1, e).view({images, 1, side, side});
    const Tensor normal =
        at::batch_norm(map_BCSS * gate, experts.weight[e], experts.bias[e], {}, {},
                       /*training=*/true, /*momentum=*/0.0, experts.options().epsilon, false);
    outputs.push_back(at::conv2d(normal.relu(), experts.w[e], experts.b[e]));
  }
  return at::cat(outputs, 1);
}

Row experts_row() {
  constexpr int64_t kChannels = 640, kSide = 8;
  nn::MapExperts experts(
      nn::MapExpertsOptions{
          .num_experts = 4, .channels = kChannels, .side = kSide, .num_outputs = 160},
      nn::make_generator(1));
  const Tensor map = at::randn({kImages, kChannels, kSide, kSide}).requires_grad_(true);
  const RouteOptions rule{.kind = RoutingKind::expert_choice,
                          .l = 16,
                          .gate = Gate::softmax_tokens,
                          .group_size = kSide * kSide};
  const Routing routing = route(at::randn({kImages * kSide * kSide, 4}), rule);
  const Tensor weights = combine_weights(routing);
  const Tensor upstream = at::randn({kImages, kChannels, kSide, kSide});
  const auto gradient = [&](const Tensor& y_BCSS) {
    (y_BCSS * upstream).sum().backward();
    const Tensor found = map.grad().clone();
    map.mutable_grad().reset();
    experts->zero_grad();
    return found;
  };
  const auto own = [&] {
    const Tensor y_Td =
        nn::mixture(*experts, nn::patches_of(map, 1).flatten(0, 1), routing, {}).y_To;
    return gradient(y_Td.view({kImages, kSide, kSide, -1}).permute({0, 3, 1, 2}));
  };
  const auto peer = [&] { return gradient(masked_maps(*experts, map, weights)); };
  const double off = (own() - peer()).abs().max().item<double>();
  if (!(off < 1e-3)) fail("bench pmoe: the baseline's gradients differ by {:.3g}", off);
  const Times times = alternate([&] { own(); }, [&] { peer(); });
  return faster(times, 1.0, "whole maps with zeros, as the released code");
}

Row step_row() {
  const WrnPMoEConfig mixed;
  WrnPMoEConfig plain;
  plain.moe.reset();
  WrnPMoE ours(mixed, 1), peer(plain, 1);
  const Tensor images = at::rand({kImages, 3, 32, 32});
  const Tensor labels = at::randint(10, {kImages}, at::kLong);
  const auto step = [&](WrnPMoE& network) {
    at::cross_entropy_loss(network.forward(images).logits, labels).backward();
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : network.parameters()) {
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad().reset();
    }
  };
  const Times times = alternate([&] { step(ours); }, [&] { step(peer); });
  return faster(times, 1.0, "a step of the plain wide residual network");
}

}  // namespace

void bench_wrn(const Report& report) {
  report("cpu/wrn_experts", experts_row);
  report("cpu/wrn_step", step_row);
}

}  // namespace moesaic::bench
