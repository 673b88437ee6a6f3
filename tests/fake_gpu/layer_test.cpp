// SPDX-License-Identifier: Apache-2.0
// What the operators and a layer ask of a GPU: so many launches, no synchronisation, and nothing
// that a CUDA graph could not take.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "fake_gpu/fake_gpu_fixture.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"

namespace moesaic {
namespace {

using at::Tensor;
using testing::on_fake;

/// A layer of bfloat16 experts behind a router, with sizes of which all rows and products are
/// aligned.
struct Layer {
  static constexpr int64_t kTokens = 512, kWidth = 64, kHidden = 128, kExperts = 8;

  explicit Layer(bool learns = false)
      : x(on_fake({kTokens, kWidth}, at::kBFloat16, learns)),
        router(on_fake({kWidth, kExperts}, at::kBFloat16, learns)),
        weights{on_fake({kExperts, kWidth, kHidden}, at::kBFloat16, learns),
                on_fake({kExperts, kHidden}, at::kBFloat16, learns),
                on_fake({kExperts, kHidden, kWidth}, at::kBFloat16, learns),
                on_fake({kExperts, kWidth}, at::kBFloat16, learns)} {}

  Tensor forward() const {
    const Tensor logits = at::mm(x, router).to(at::kFloat);
    return routed_mlp(x, route(logits, {.k = 2}), weights, Activation::gelu_tanh);
  }
  void train() const {
    const Tensor y = forward();
    y.backward(at::empty_like(y));
    for (const Tensor& leaf : {x, router, weights.w1, weights.b1, weights.w2, weights.b2}) {
      leaf.mutable_grad() = Tensor();
    }
  }

  Tensor x, router;
  ExpertWeights weights;
};

struct Case {
  const char* name;
  uint64_t launches, products;
  std::function<std::function<void()>()> prepare;  ///< Returns the work.
};

void PrintTo(const Case& c, std::ostream* to) {
  *to << c.name;
}

std::function<void()> routes(const RouteOptions& options) {
  const Tensor logits = on_fake({Layer::kTokens, Layer::kExperts}, at::kFloat);
  return [=] { route(logits, options); };
}

Routing routing() {
  return route(on_fake({Layer::kTokens, Layer::kExperts}, at::kFloat), {.k = 2});
}

/// A product of cuBLAS is a launch or two more; those of _grouped_mm are two launches each, as one
/// kernel writes the problems' sizes for the other.
const Case kCases[] = {
    // Choose, scan, place.
    {"TokenChoice", 3, 0, [] { return routes({.k = 2, .capacity = {.factor = 1.05}}); }},
    // The list of kept experts comes first.
    {"TokenChoiceOfKept", 4, 0,
     [] {
       return routes({.k = 2, .kept = {0, 3}});
     }},
    // Scores, borders, two passes of a softmax; count, scan, place.
    {"ExpertChoice", 7, 0,
     [] {
       const Tensor logits = on_fake({Layer::kTokens, Layer::kExperts}, at::kFloat);
       return [=] {
         route(logits, {.kind = RoutingKind::expert_choice,
                        .gate = Gate::softmax_selected,
                        .capacity = {.factor = 1.0}});
       };
     }},
    {"Dispatch", 1, 0, [] { return [x = Layer().x, r = routing()] { dispatch(x, r); }; }},
    {"Combine", 1, 0,
     [] {
       return [rows = on_fake({2 * Layer::kTokens, Layer::kWidth}), r = routing()] {
         combine(rows, r);
       };
     }},
    // Two products, bias and activation, bias, and the rows that are not used.
    {"GroupedMlp", 7, 0,
     [] {
       return [rows = on_fake({2 * Layer::kTokens, Layer::kWidth}), r = routing(),
               w = Layer().weights] { grouped_mlp(rows, r.offsets, w, Activation::gelu_tanh); };
     }},
    // The router's product, its cast, and the operators above; combine adds the second bias.
    {"Forward", 12, 1, [] { return [layer = Layer()] { layer.forward(); }; }},
    // 14 forward. Backward: four grouped GEMMs; gradients of combine, activation, dispatch and
    // cast, and nine operators for those of the gates; sums of biases; zeros for experts and rows
    // without use.
    {"ForwardAndBackward", 42, 3, [] { return [layer = Layer(true)] { layer.train(); }; }},
};

class LaunchesOnAGpu : public testing::FakeGpuTest, public ::testing::WithParamInterface<Case> {};

TEST_P(LaunchesOnAGpu, AreSoManyAndTheHostWaitsForNone) {
  const FakeGpuCounts found = counts_of(GetParam().prepare());
  EXPECT_EQ(found.launches, GetParam().launches);
  EXPECT_EQ(found.products, GetParam().products);
  testing::expect_no_wait(found);
  EXPECT_EQ(found.allocations, 0u);
}

INSTANTIATE_TEST_SUITE_P(Of, LaunchesOnAGpu, ::testing::ValuesIn(kCases),
                         [](const auto& instance) { return std::string(instance.param.name); });

using CompositesOnAGpu = testing::FakeGpuTest;

TEST_F(CompositesOnAGpu, NeverWaitForTheHost) {
  const Tensor logits = on_fake({Layer::kTokens, Layer::kExperts}, at::kFloat, true);
  const Tensor many = on_fake({Layer::kTokens, 16}, at::kFloat, true);  // More than kernels choose.
  const auto backward = [](const Routing& routing) {
    routing.gate.backward(at::ones_like(routing.gate));
  };
  const std::function<void()> routings[] = {
      [&] {
        backward(
            route(logits,
                  {.k = 2, .capacity = {.factor = 1.05, .batch_priority = true}, .kept = {0, 3}}));
      },
      [&] {
        backward(route(logits, {.kind = RoutingKind::expert_choice,
                                .gate = Gate::softmax_selected,
                                .capacity = {.factor = 1.0},
                                .kept = {0, 3}}));
      },
      [&] {
        backward(route(many, {.k = 9,
                              .capacity = {.factor = 1.05},
                              .kept = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                              .pruned = PrunedSelection::reroute}));
      },
      [&] {
        const Tensor most = on_fake({Layer::kTokens, 5000}, at::kFloat, true);
        backward(route(most, {.k = 9}));
        backward(route(most, {.k = 1}));
      },
      [&] {
        const Tensor most = on_fake({1024, 5000}, at::kFloat, true);
        backward(route(most, {.kind = RoutingKind::expert_choice,
                              .gate = Gate::softmax_selected,
                              .capacity = {.factor = 1.0}}));
      },
      [&] { route(logits, {.kind = RoutingKind::threshold, .threshold = 0.5}); }};
  for (const auto& route : routings) {
    const auto found = counts_of(route);
    testing::expect_no_wait(found);
    EXPECT_EQ(found.allocations, 0u);
  }
}

using GraphOnAGpu = testing::FakeGpuTest;

TEST_F(GraphOnAGpu, TakesALayerForwardAndBackward) {
  for (const bool learns : {false, true}) {
    const Layer layer(learns);
    const auto run = [&] { learns ? layer.train() : static_cast<void>(layer.forward()); };
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    run();
    reset();
    at::cuda::CUDAGraph graph;
    graph.capture_begin();
    run();
    graph.capture_end();
    EXPECT_GT(counts().launches, 10u);
    graph.replay();
    EXPECT_EQ(counts().replays, 1u);
    EXPECT_EQ(take_errors(), "") << learns;
  }
}

}  // namespace
}  // namespace moesaic
