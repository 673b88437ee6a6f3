// SPDX-License-Identifier: Apache-2.0
// Dispatch, grouped MLP and combine on a GPU against the CPU in float64: 1e-4 in float32, 2e-2 in
// types of two bytes. All run with grouped GEMMs, where the chip has them, and with a product
// for every expert.
#include <vector>

#include "base/support.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"
#include "support/cuda.h"
#include "support/poison.h"
#include "support/tensors.h"

#ifdef MOESAIC_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace moesaic {
namespace {

using testing::on_cpu;
using testing::on_gpu;
using testing::Poison;

class ExpertsCuda : public testing::CudaTest, public ::testing::WithParamInterface<const char*> {
 private:
  test::ScopedEnv off_{"MOESAIC_CUDA_OFF", GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Products, ExpertsCuda, ::testing::Values("", "grouped_mm"),
                         [](const auto& instance) {
                           return std::string(*instance.param == '\0' ? "grouped" : "by_expert");
                         });

double tolerance_of(at::ScalarType type) {
  if (type == torch::kDouble) return 1e-11;
  return type == torch::kFloat ? 1e-4 : 2e-2;
}

/// One layer's inputs; every tensor requires a gradient.
struct LayerInputs {
  at::Tensor x, logits;
  ExpertWeights weights;

  std::vector<at::Tensor> leaves() const {
    return {x, logits, weights.w1, weights.b1, weights.w2, weights.b2};
  }
  /// A copy with rows and weights of a type on a device; logits are float32 beside types of two
  /// bytes.
  LayerInputs to(at::Device device, at::ScalarType type) const {
    const auto move = [&](const at::Tensor& t, at::ScalarType as) {
      return t.detach().to(device, as).clone().set_requires_grad(true);
    };
    const auto gates = type == torch::kDouble ? torch::kDouble : torch::kFloat;
    return {move(x, type),
            move(logits, gates),
            {move(weights.w1, type), move(weights.b1, type), move(weights.w2, type),
             move(weights.b2, type)}};
  }
};

LayerInputs random_inputs(int64_t tokens, int64_t experts, int64_t d, int64_t m) {
  // What bfloat16 holds exactly, so that all types begin with the same numbers; an expert gets no
  // token.
  const auto exact = [](const at::Tensor& t) { return t.to(torch::kBFloat16).to(torch::kDouble); };
  at::Tensor logits = randn({tokens, experts}, 2);
  logits.select(1, experts - 1).fill_(-50.0);
  return {exact(randn({tokens, d}, 1)),
          exact(logits),
          {exact(randn({experts, d, m}, 3) * 0.1), exact(randn({experts, m}, 4)),
           exact(randn({experts, m, d}, 5) * 0.1), exact(randn({experts, d}, 6))}};
}

at::Tensor layer(const LayerInputs& in, Activation activation) {
  const Routing routing =
      route(in.logits, {.k = 2, .capacity = {.factor = 1.1}, .group_size = 100});
  const at::Tensor rows = dispatch(in.x, routing);
  return combine(grouped_mlp(rows, routing.offsets, in.weights, activation), routing);
}

/// The layer's output and all gradients.
std::vector<at::Tensor> run_layer(const LayerInputs& in, Activation activation) {
  const at::Tensor y = layer(in, activation);
  y.backward(torch::ones_like(y).expand(y.sizes()));
  std::vector<at::Tensor> out = {y.detach()};
  for (const at::Tensor& leaf : in.leaves()) out.push_back(leaf.grad());
  return out;
}

void expect_layer(int64_t tokens, int64_t experts, int64_t d, int64_t m, at::ScalarType type,
                  Activation activation) {
  const LayerInputs inputs = random_inputs(tokens, experts, d, m);
  const auto wanted = run_layer(inputs.to(torch::kCPU, torch::kDouble), activation);
  const auto found = run_layer(inputs.to(torch::kCUDA, type), activation);
  for (size_t i = 0; i < wanted.size(); ++i) {
    SCOPED_TRACE("tensor " + std::to_string(i));
    // Relative to the tensor's own size.
    const double scale = std::max(wanted[i].abs().max().item<double>(), 1e-30);
    expect_close(on_cpu(found[i]) / scale, wanted[i] / scale, tolerance_of(type));
  }
}

TEST_P(ExpertsCuda, ALayerAndItsGradientsEqualTheCpu) {
  const Poison poison;
  for (const auto activation : {Activation::relu, Activation::gelu_tanh}) {
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
      // The kink would turn rounding into steps of the gradient.
      if (type != torch::kFloat && type != torch::kDouble && activation == Activation::relu)
        continue;
      expect_layer(500, 5, 64, 192, type, activation);  // 16-byte pieces, grouped GEMMs
      expect_layer(300, 4, 7, 13, type, activation);    // neither
      expect_layer(10, 3, 8, 8, type, activation);
      if (type != torch::kDouble) {
        expect_layer(3000, 3, 264, 392, type, activation);  // several tiles each way, none full
      }
      ASSERT_FALSE(HasFailure()) << c10::toString(type);
    }
  }
}

// Rows of two bytes take the GPU's approximate exponential and division.
TEST_P(ExpertsCuda, GeluIsRightFarFromZeroToo) {
  const auto x64 = torch::tensor({-1000., -60., -12., -3., -0.5, 0., 3., 1000.}, torch::kDouble);
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const auto on_device = [&](const at::Tensor& t) { return t.to(torch::kCUDA, type); };
    const at::Tensor identity = on_device(torch::eye(8)).unsqueeze(0).contiguous();
    const at::Tensor zeros = on_device(torch::zeros({1, 8}));
    at::Tensor rows = on_device(x64.unsqueeze(0)).requires_grad_(true);
    const at::Tensor offsets = torch::tensor({0, 1}, torch::kInt).to(torch::kCUDA);
    const at::Tensor y =
        grouped_mlp(rows, offsets, {identity, zeros, identity, zeros}, Activation::gelu_tanh);
    y.sum().backward();
    at::Tensor exact = x64.clone().requires_grad_(true);
    const at::Tensor wanted = torch::gelu(exact, "tanh");
    wanted.sum().backward();
    EXPECT_TRUE(torch::allclose(on_cpu(y)[0], wanted, 1e-2, 1e-4)) << y;
    EXPECT_TRUE(torch::allclose(on_cpu(rows.grad())[0], exact.grad(), 1e-2, 1e-2)) << rows.grad();
  }
}

TEST_P(ExpertsCuda, UnusedRowsAreZero) {
  const Poison poison;
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const LayerInputs in = random_inputs(200, 4, 64, 64).to(torch::kCUDA, type);
    const Routing routing = route(in.logits, {.k = 2, .kept = {0, 1}});
    ExpertWeights weights;
    weights.w1 = in.weights.w1.slice(0, 0, 2).detach().contiguous();
    weights.b1 = in.weights.b1.slice(0, 0, 2).detach().contiguous();
    weights.w2 = in.weights.w2.slice(0, 0, 2).detach().contiguous();
    weights.b2 = in.weights.b2.slice(0, 0, 2).detach().contiguous();
    at::Tensor rows = dispatch(in.x, routing).detach().set_requires_grad(true);
    const at::Tensor y = grouped_mlp(rows, routing.offsets, weights, Activation::gelu_tanh);
    y.backward(torch::ones_like(y));
    const int64_t filled = routing.offsets[-1].item<int64_t>();
    ASSERT_LT(filled, routing.max_rows());
    for (const at::Tensor& tensor : {rows.detach(), y.detach(), rows.grad()}) {
      EXPECT_EQ(on_cpu(tensor.slice(0, filled)).abs().sum().item<double>(), 0.0);
    }
  }
}

TEST_P(ExpertsCuda, NoTokensGiveNothingAndZeroGradients) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    LayerInputs in = random_inputs(4, 3, 16, 16).to(torch::kCUDA, type);
    const at::Tensor rows = torch::zeros({0, 16}, in.x.options()).set_requires_grad(true);
    const at::Tensor offsets = torch::zeros({4}, in.x.options().dtype(torch::kInt));
    const at::Tensor y = grouped_mlp(rows, offsets, in.weights, Activation::relu);
    EXPECT_EQ(y.size(0), 0);
    y.sum().backward();
    EXPECT_EQ(on_cpu(in.weights.w1.grad()).abs().sum().item<double>(), 0.0);
    EXPECT_EQ(on_cpu(in.weights.b2.grad()).abs().sum().item<double>(), 0.0);
  }
}

TEST_P(ExpertsCuda, ManyRunsAreBitwiseEqual) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const LayerInputs inputs = random_inputs(2000, 6, 64, 128);
    std::vector<at::Tensor> first;
    for (int run = 0; run < 100; ++run) {
      auto found = run_layer(inputs.to(torch::kCUDA, type), Activation::gelu_tanh);
      if (run == 0) first = found;
      for (size_t i = 0; i < found.size(); ++i) ASSERT_TRUE(torch::equal(found[i], first[i]));
    }
  }
}

#ifdef MOESAIC_WITH_CUDA
// A GEMM per expert synchronises with the host, so a graph takes grouped GEMMs only.
TEST_P(ExpertsCuda, AGraphCapturesALayerAndReplaysItOnOtherNumbers) {
  const int major = at::cuda::getCurrentDeviceProperties()->major;
  if (*GetParam() != '\0' || (major != 9 && major != 10)) GTEST_SKIP() << "no grouped products";
  const torch::NoGradGuard no_grad;
  const LayerInputs a = random_inputs(1000, 4, 64, 128).to(torch::kCUDA, torch::kBFloat16);
  const at::Tensor other_x = on_gpu(randn({1000, 64}, 21, torch::kBFloat16));
  const at::Tensor other_logits = on_gpu(randn({1000, 4}, 22, torch::kFloat));
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::Tensor y = layer(a, Activation::gelu_tanh);  // once outside, for what is set up lazily
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  y = layer(a, Activation::gelu_tanh);
  graph.capture_end();
  a.x.copy_(other_x);
  a.logits.copy_(other_logits);
  graph.replay();
  torch::cuda::synchronize();
  EXPECT_TRUE(torch::equal(y, layer(a, Activation::gelu_tanh)));
}
#endif

}  // namespace
}  // namespace moesaic
