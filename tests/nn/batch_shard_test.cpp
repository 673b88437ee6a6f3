// SPDX-License-Identifier: Apache-2.0
// Layers that couple the images of a batch, on shards of it in several processes, in float64.
#include "moesaic/nn/batch_shard.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/nn/image_network.h"
#include "moesaic/nn/init.h"
#include "moesaic/ops/route.h"
#include "moesaic/papers/clusters.h"
#include "moesaic/papers/pmoe.h"
#include "support/processes.h"

namespace moesaic {
namespace {

using test::run_processes;

void expect_same_sums(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(at::allclose(a, b, 1e-9, 1e-10)) << (a - b).abs().max().item<double>();
}

/// Returns the sum over processes of a gradient.
at::Tensor summed_gradient(const at::Tensor& gradient, const ProcessMesh& processes) {
  at::Tensor sum = gradient.clone();
  processes.world().all_reduce(sum, Traffic::other);
  return sum;
}

TEST(DataParallelModule, BatchNormTakesTheMomentsOfUnequalParts) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({6, 3, 2, 2}, at::kDouble) + 1;
  const at::Tensor weight = torch::randn({6, 3, 2, 2}, at::kDouble);
  torch::nn::BatchNorm2d whole(3);
  whole->to(at::kDouble);
  at::Tensor all = x.clone().requires_grad_();
  const at::Tensor y = whole->forward(all);
  (y * weight).sum().backward();
  run_processes(2, {}, [&](const auto& processes) {
    nn::BatchNorm2d norm(3);
    norm->to(at::kDouble);
    norm->set_batch_shard({processes});
    // Two images here, four there.
    const int64_t first = processes->rank() * 2, count = processes->rank() == 0 ? 2 : 4;
    at::Tensor own = x.narrow(0, first, count).clone().requires_grad_();
    const at::Tensor out = norm->forward(own);
    expect_same_sums(out, y.narrow(0, first, count));
    (out * weight.narrow(0, first, count)).sum().backward();
    expect_same_sums(own.grad(), all.grad().narrow(0, first, count));
    expect_same_sums(summed_gradient(norm->weight.grad(), *processes), whole->weight.grad());
    expect_same_sums(norm->running_mean, whole->running_mean);
    expect_same_sums(norm->running_var, whole->running_var);
    EXPECT_EQ(norm->num_batches_tracked.template item<int64_t>(), 1);
  });
}

TEST(DataParallelModule, BatchNormSumsBfloat16InFloat32) {
  torch::manual_seed(6);
  const at::Tensor x = (torch::randn({64, 3, 4, 4}) + 10).to(at::kBFloat16);
  torch::nn::BatchNorm2d whole(3);
  const at::Tensor y = whole->forward(x.to(at::kFloat));
  run_processes(2, {}, [&](const auto& processes) {
    nn::BatchNorm2d norm(3);
    norm->set_batch_shard({processes});
    const at::Tensor out = norm->forward(x.narrow(0, processes->rank() * 32, 32));
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    const at::Tensor expected = y.narrow(0, processes->rank() * 32, 32).to(at::kBFloat16);
    EXPECT_TRUE(at::allclose(out.to(at::kFloat), expected.to(at::kFloat), 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose(norm->running_mean, whole->running_mean, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(norm->running_var, whole->running_var, 1e-5, 1e-6));
  });
}

TEST(DataParallelModule, MapExpertsNormaliseByTheWholeBatch) {
  const nn::MapExpertsOptions options{
      .num_experts = 2, .channels = 3, .side = 4, .patch = 2, .num_outputs = 2, .kernel = 3};
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({4 * 4, 3 * 4}, at::kDouble);  // Four images of four patches.
  const at::Tensor logits = torch::randn({16, 2}, at::kDouble);
  const RouteOptions rule{
      .kind = RoutingKind::expert_choice, .l = 2, .gate = Gate::softmax_tokens, .group_size = 4};
  nn::MapExperts whole(options, nn::make_generator(3));
  whole->to(at::kDouble);
  const at::Tensor y = nn::mixture(*whole, x, route(logits, rule), {}).y_To;
  y.square().sum().backward();
  run_processes(2, {}, [&](const auto& processes) {
    nn::MapExperts experts(options, nn::make_generator(3));
    experts->to(at::kDouble);
    experts->set_batch_shard({processes});
    const int64_t first = processes->rank() * 8;
    const Routing routing = route(logits.narrow(0, first, 8), rule);
    const at::Tensor own = nn::mixture(*experts, x.narrow(0, first, 8), routing, {}).y_To;
    expect_same_sums(own, y.narrow(0, first, 8));
    own.square().sum().backward();
    expect_same_sums(summed_gradient(experts->w.grad(), *processes), whole->w.grad());
    expect_same_sums(summed_gradient(experts->weight.grad(), *processes), whole->weight.grad());
    expect_same_sums(experts->running_var, whole->running_var);
  });
}

TEST(DataParallelModule, AnExpertWithImagesInOneProcessOnlyRunsInAll) {
  const nn::ImageNetworkOptions options{.channels = 1, .side = 8, .num_classes = 3};
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({6, 1, 8, 8}, at::kDouble);
  // Process 0 has images of expert 0 alone, process 1 of both.
  const at::Tensor logits =
      at::tensor({9., 0., 9., 0., 9., 0., 9., 0., 0., 9., 0., 9.}, at::kDouble).view({6, 2});
  nn::ImageExperts whole("resnet18", 2, options, nn::make_generator(5));
  whole->to(at::kDouble);
  const at::Tensor y = nn::mixture(*whole, x, route(logits, {.k = 1}), {}).y_To;
  y.square().sum().backward();
  run_processes(2, {}, [&](const auto& processes) {
    nn::ImageExperts experts("resnet18", 2, options, nn::make_generator(5));
    experts->to(at::kDouble);
    nn::set_batch_shard(*experts, {processes});
    const int64_t first = processes->rank() * 3;
    const Routing routing = route(logits.narrow(0, first, 3), {.k = 1});
    const at::Tensor own = nn::mixture(*experts, x.narrow(0, first, 3), routing, {}).y_To;
    EXPECT_TRUE(at::allclose(own, y.narrow(0, first, 3), 1e-6, 1e-8));
    own.square().sum().backward();
    const auto expected = whole->named_parameters();
    for (const auto& item : experts->named_parameters()) {
      const at::Tensor gradient = item.value().grad();
      if (!expected[item.key()].grad().defined()) continue;
      const at::Tensor sum =
          summed_gradient(gradient.defined() ? gradient : at::zeros_like(item.value()), *processes);
      EXPECT_TRUE(at::allclose(sum, expected[item.key()].grad(), 1e-5, 1e-7)) << item.key();
    }
  });
}

}  // namespace
}  // namespace moesaic
