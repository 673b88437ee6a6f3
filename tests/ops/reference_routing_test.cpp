// SPDX-License-Identifier: Apache-2.0
// Routings and router losses against tensors of the reference implementation of V-MoE, ties and
// gates of zero included; see tests/golden/README.md.
#include <fmt/format.h>

#include "moesaic/checkpoint/tensors.h"
#include "moesaic/ops/losses.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

class ReferenceRouting : public ::testing::Test {
 protected:
  static const at::Tensor& golden(const std::string& name) {
    static const TensorMap tensors =
        read_tensors(MOESAIC_TEST_SOURCE_DIR "/tests/golden/routing.safetensors");
    return tensors.at(name);
  }
  /// Logits whose softmax the reference's gates are.
  static at::Tensor logits_of(const std::string& gates) {
    return golden(gates).to(torch::kDouble).log();
  }
};

/// Which experts compute which tokens: [T, E], 1 or 0.
at::Tensor routed(const Routing& routing) {
  Routing plain = routing;
  plain.gate = torch::ones_like(routing.gate);
  return combine_weights(plain);
}

/// Compares the rows and weights of tokens with the reference's, which are by place in a queue.
void expect_golden(const Routing& routing, const at::Tensor& dispatch, const at::Tensor& combine) {
  EXPECT_TRUE(torch::equal(routed(routing), dispatch.sum({2}).to(torch::kDouble)));
  expect_close(combine_weights(routing), combine.sum({2}).to(torch::kDouble), 1e-6);
}

struct DispatchCase {
  const char* name;
  int64_t k, capacity;
};

TEST_F(ReferenceRouting, TokenChoice) {
  for (const auto& [name, k, capacity] :
       {DispatchCase{"uniform", 2, 4}, DispatchCase{"ties", 2, 2}, DispatchCase{"zeros", 2, 2},
        DispatchCase{"random", 3, 8}, DispatchCase{"skewed", 2, 4}, DispatchCase{"top1", 1, 3}}) {
    for (const bool priority : {false, true}) {
      const std::string place = fmt::format("dispatch/{}_{}/", name, priority ? "bpr" : "vanilla");
      SCOPED_TRACE(place);
      const at::Tensor logits = logits_of(place + "gates");
      RouteOptions options{.k = k, .capacity = {.batch_priority = priority}};
      options.capacity.rounding = CapacityRounding::round;
      options.capacity.multiple_of = 1;
      options.capacity.factor =
          static_cast<double>(capacity * logits.size(1)) / static_cast<double>(logits.size(0) * k);
      const Routing routing = route(logits, options);
      EXPECT_TRUE(torch::equal(routing.choice, golden(place + "topk_index")));
      expect_golden(routing, golden(place + "dispatch"), golden(place + "combine"));
    }
  }
}

TEST_F(ReferenceRouting, ExpertChoice) {
  for (const auto& [name, capacity] : {std::pair{"uniform", 2}, {"random", 5}, {"ties", 3}}) {
    const std::string place = fmt::format("items/{}/", name);
    SCOPED_TRACE(place);
    const Routing routing =
        route(logits_of(place + "gates"),
              {.kind = RoutingKind::expert_choice, .l = capacity, .gate = Gate::softmax_all});
    expect_golden(routing, golden(place + "dispatch"), golden(place + "combine"));
  }
}

TEST_F(ReferenceRouting, ImportanceAndGshardLosses) {
  for (int i = 0; i < 4; ++i) {
    const std::string place = fmt::format("aux/{}/", i);
    const at::Tensor logits = logits_of(place + "gates");
    expect_close(importance_loss(logits, 0), golden(place + "importance_loss"), 1e-6);
    expect_close(gshard_loss(logits, 0), golden(place + "gshard_loss"), 1e-6);
  }
}

struct LoadCase {
  int64_t k;
  double noise_std;
};

TEST_F(ReferenceRouting, LossesHaveItsGradients) {
  const LoadCase cases[] = {{2, 0.125}, {1, 0.25}, {3, 1.0 / 6.0}};
  for (int i = 0; i < 3; ++i) {
    const std::string place = fmt::format("load/{}/", i);
    const at::Tensor logits = golden(place + "logits").clone().requires_grad_();
    const at::Tensor noisy = golden(place + "logits_noisy").clone().requires_grad_();
    const at::Tensor load = load_loss(logits, noisy, cases[i].k, cases[i].noise_std, 0);
    expect_close(load, golden(place + "load_loss"), 2e-6);
    const auto grads = torch::autograd::grad({load}, {logits, noisy});
    expect_close(grads[0], golden(place + "grad_logits"), 2e-6);
    expect_close(grads[1], golden(place + "grad_logits_noisy"), 2e-6);
    const auto gradient = [&](const at::Tensor& loss) {
      return torch::autograd::grad({loss}, {logits})[0];
    };
    expect_close(gradient(importance_loss(logits, 0)), golden(place + "importance_grad_logits"),
                 2e-6);
    expect_close(gradient(gshard_loss(logits, 0)), golden(place + "gshard_grad_logits"), 2e-6);
  }
}

}  // namespace
}  // namespace moesaic
