// SPDX-License-Identifier: Apache-2.0
// Layers of the size that GPUs are bought for: more hidden numbers than 32 bits count, and many
// experts. Rows of a few tokens are compared with the CPU, which computes these alone.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"
#include "support/cuda.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using at::Tensor;
using testing::on_cpu;

struct Size {
  const char* name;
  int64_t tokens, width, hidden, experts;
};

constexpr Size kSizes[] = {
    {"Tokens591k", 590'848, 768, 3072, 8},
    {"Experts64", 66'560, 192, 768, 64},
    {"Experts256", 66'560, 192, 768, 256},
};

class SizeCuda : public testing::CudaTest, public ::testing::WithParamInterface<Size> {};

struct Layer {
  Tensor x, logits;
  ExpertWeights weights;

  static Layer random(const Size& size, at::ScalarType type) {
    torch::manual_seed(1);
    const auto draw = [&](at::IntArrayRef shape, double scale) {
      return torch::randn(shape, torch::device(torch::kCUDA).dtype(type)) * scale;
    };
    const int64_t E = size.experts, d = size.width, m = size.hidden;
    return {draw({size.tokens, d}, 1),
            torch::randn({size.tokens, E}, torch::device(torch::kCUDA)),
            {draw({E, d, m}, 0.03), draw({E, m}, 0.1), draw({E, m, d}, 0.03), draw({E, d}, 0.1)}};
  }
};

/// Tokens at both ends and in the middle, and those of the rows around the one whose hidden numbers
/// pass 2^31.
Tensor some_tokens(const Size& size, const Routing& routing) {
  const int64_t border = std::min((int64_t{1} << 31) / size.hidden, routing.max_rows() - 8);
  std::vector<Tensor> tokens = {routing.token.narrow(0, border - 8, 16).to(torch::kLong)};
  for (const int64_t first : {int64_t{0}, size.tokens / 2, size.tokens - 8}) {
    tokens.push_back(torch::arange(first, first + 8, tokens[0].options()));
  }
  return torch::cat(tokens);
}

TEST_P(SizeCuda, ALayerEqualsTheCpuOnSomeTokens) {
  const Size size = GetParam();
  if (size.experts == 8) {
    ASSERT_GT(2 * size.tokens * size.hidden, int64_t{std::numeric_limits<int32_t>::max()});
  }
  const torch::NoGradGuard no_grad;
  const Layer layer = Layer::random(size, torch::kBFloat16);
  const Routing routing = route(layer.logits, {.k = 2});
  const Tensor y = routed_mlp(layer.x, routing, layer.weights, Activation::gelu_tanh);
  const Tensor index = some_tokens(size, routing);
  const auto some = [&](const Tensor& tensor) { return on_cpu(tensor.index_select(0, index)); };
  const Routing few = route(some(layer.logits), {.k = 2});
  const Tensor wanted = routed_mlp(some(layer.x), few,
                                   {on_cpu(layer.weights.w1), on_cpu(layer.weights.b1),
                                    on_cpu(layer.weights.w2), on_cpu(layer.weights.b2)},
                                   Activation::gelu_tanh);
  const double scale = wanted.abs().max().item<double>();
  testing::expect_close(some(y) / scale, wanted / scale, 2e-2);
}

TEST_P(SizeCuda, GradientsAreThoseOfHalvesAddedUp) {
  Size size = GetParam();
  size.tokens = std::min<int64_t>(size.tokens, 360'000);  // A backward pass holds three matrices.
  if (size.experts == 8) {
    ASSERT_GT(2 * size.tokens * size.hidden, int64_t{std::numeric_limits<int32_t>::max()});
  }
  const Layer layer = Layer::random(size, torch::kBFloat16);
  const auto gradients = [&](int64_t first, int64_t count) {
    ExpertWeights w = layer.weights;
    for (Tensor* t : {&w.w1, &w.b1, &w.w2, &w.b2}) *t = t->detach().clone().requires_grad_(true);
    const Tensor x = layer.x.narrow(0, first, count).detach().clone().requires_grad_(true);
    const Routing routing = route(layer.logits.narrow(0, first, count), {.k = 2});
    routed_mlp(x, routing, w, Activation::gelu_tanh).backward(torch::ones_like(x));
    return std::vector<Tensor>{x.grad(), w.w1.grad(), w.b1.grad(), w.w2.grad(), w.b2.grad()};
  };
  const int64_t half = size.tokens / 2;
  const auto whole = gradients(0, size.tokens), a = gradients(0, half), b = gradients(half, half);
  EXPECT_TRUE(torch::allclose(whole[0], torch::cat({a[0], b[0]}), 2e-2, 2e-2));
  for (size_t i = 1; i < whole.size(); ++i) {
    const Tensor sum = a[i].to(torch::kFloat) + b[i].to(torch::kFloat);
    const double apart = ((whole[i].to(torch::kFloat) - sum).norm() / sum.norm()).item<double>();
    EXPECT_LT(apart, 2e-2) << "gradient " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SizeCuda, ::testing::ValuesIn(kSizes),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace moesaic
