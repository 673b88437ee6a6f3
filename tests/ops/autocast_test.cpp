// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/autocast.h"

#include "base/support.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

const c10::Device kCpu(c10::kCPU);

ExpertWeights some_weights(bool gradient) {
  return {(randn({3, 8, 16}, 1, at::kFloat) * 0.3).requires_grad_(gradient),
          randn({3, 16}, 2, at::kFloat).requires_grad_(gradient),
          (randn({3, 16, 8}, 3, at::kFloat) * 0.3).requires_grad_(gradient),
          randn({3, 8}, 4, at::kFloat).requires_grad_(gradient)};
}

ExpertWeights rounded(const ExpertWeights& w) {
  return {w.w1.to(at::kBFloat16), w.b1.to(at::kBFloat16), w.w2.to(at::kBFloat16),
          w.b2.to(at::kBFloat16)};
}

TEST(Autocast, ExpertsRunInBfloat16AndGatesStayFloat32) {
  for (const bool gradient : {false, true}) {
    const at::Tensor x = randn({20, 8}, 5, at::kFloat);
    const Routing routing = route(randn({20, 3}, 6, at::kFloat), {.k = 2});
    const ExpertWeights weights = some_weights(gradient);
    const at::Tensor wanted =
        routed_mlp(x.to(at::kBFloat16), routing, rounded(weights), Activation::gelu_tanh);
    const Autocast autocast("bfloat16", kCpu);
    const at::Tensor found = routed_mlp(x, routing, weights, Activation::gelu_tanh);
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(torch::equal(found, wanted));
    EXPECT_EQ(found.requires_grad(), gradient);
  }
}

TEST(Autocast, GradientsOfParametersAreFloat32) {
  const ExpertWeights weights = some_weights(true);
  const at::Tensor rows = randn({6, 8}, 5, at::kFloat);
  const at::Tensor offsets = torch::tensor({0, 2, 3, 6}, at::kInt);
  at::Tensor y;
  {
    const Autocast autocast("bfloat16", kCpu);
    y = grouped_mlp(rows, offsets, weights, Activation::gelu_tanh);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  }
  y.to(at::kFloat).sum().backward();
  const at::Tensor in_bfloat16 = weights.w1.grad().clone();
  EXPECT_EQ(in_bfloat16.scalar_type(), at::kFloat);
  weights.w1.mutable_grad().reset();
  grouped_mlp(rows, offsets, weights, Activation::gelu_tanh).sum().backward();
  const double largest = weights.w1.grad().abs().max().item<double>();
  EXPECT_LE((in_bfloat16 - weights.w1.grad()).abs().max().item<double>(), 2e-2 * largest);
  EXPECT_FALSE(torch::equal(in_bfloat16, weights.w1.grad()));
}

TEST(Autocast, RoutersStayFloat32) {
  const at::Tensor logits = randn({20, 4}, 6, at::kFloat);
  nn::MoELayer layer(nn::MoELayerOptions{.width = 8, .hidden = 16, .num_experts = 4}, 3);
  const at::Tensor x = randn({20, 8}, 5, at::kFloat);
  const at::Tensor wanted = layer->forward(x).logits_TE;
  const Autocast autocast("bfloat16", kCpu);
  EXPECT_TRUE(torch::equal(layer->forward(x).logits_TE, wanted));
  EXPECT_EQ(at::mm(x, layer->router->weight.t()).scalar_type(), at::kBFloat16);
  for (const RouteOptions& options :
       {RouteOptions{.k = 2},
        RouteOptions{.kind = RoutingKind::expert_choice, .l = 2, .gate = Gate::softmax_selected},
        RouteOptions{.kind = RoutingKind::threshold}}) {
    EXPECT_EQ(route(logits.to(at::kBFloat16), options).gate.scalar_type(), at::kFloat);
  }
}

TEST(Autocast, EndsWithItsScope) {
  const at::Tensor a = randn({2, 2}, 1, at::kFloat);
  {
    const Autocast outer("bfloat16", kCpu);
    { const Autocast inner("bfloat16", kCpu); }
    EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
    const NoAutocastGuard none;
    EXPECT_EQ(at::mm(a, a).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kFloat);
  const Autocast off("float32", kCpu);
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kFloat);
  EXPECT_EQ(test::usage_of([] { const Autocast wrong("bfloat61", kCpu); }),
            "unknown precision 'bfloat61'; did you mean 'bfloat16'?");
}

}  // namespace
}  // namespace moesaic
