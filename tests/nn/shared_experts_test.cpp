// SPDX-License-Identifier: Apache-2.0
// Layers whose experts processes share, in float64: outputs, gradients and running statistics are
// those of one process.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "moesaic/nn/init.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/papers/clusters.h"
#include "moesaic/papers/pmoe.h"
#include "moesaic/parallel/process_mesh.h"
#include "support/processes.h"

namespace moesaic {
namespace {

/// A layer and what a batch gives its router and its experts; each token has as many rows of both.
struct SharedLayerCase {
  std::function<nn::MoELayer()> make;
  at::Tensor router_input, experts_input;
};

void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& name) {
  ASSERT_EQ(a.sizes(), b.sizes()) << name;
  EXPECT_TRUE(at::allclose(a, b, 1e-8, 1e-10)) << name << ": " << (a - b).abs().max();
}

at::Tensor gradient_or_zeros(const at::Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter);
}

/// A loss in which every output counts differently.
at::Tensor loss_of(const at::Tensor& y, int64_t first_row) {
  const at::Tensor row = at::arange(first_row, first_row + y.size(0), y.options());
  return ((row.unsqueeze(1) * 0.7 + at::arange(y.size(1), y.options())).sin() * y).sum();
}

/// Compares the gradients of a process' experts, summed over those that hold the same, with their
/// slices of stacked ones of one process, or with those of the same names.
void expect_same_gradients(nn::MoELayer& layer, nn::MoELayer& whole, const ProcessMesh& processes) {
  const auto expected = whole->experts->named_parameters();
  for (const auto& item : layer->experts->named_parameters()) {
    at::Tensor gradient = gradient_or_zeros(item.value());
    processes.replica_group().all_reduce(gradient, Traffic::other);
    at::Tensor wanted = gradient_or_zeros(expected[item.key()]);
    if (!layer->experts->has_expert_names()) {
      wanted =
          wanted.narrow(0, processes.expert_group().rank() * gradient.size(0), gradient.size(0));
    }
    expect_near(gradient, wanted, item.key());
  }
  at::Tensor of_router = layer->router->weight.grad().clone();
  processes.world().all_reduce(of_router, Traffic::other);
  expect_near(of_router, whole->router->weight.grad(), "router");
}

void expect_same_as_whole(const SharedLayerCase& given, int64_t size, int64_t num_expert_ranks) {
  SCOPED_TRACE(size);
  nn::MoELayer whole = given.make();
  const at::Tensor y = whole->forward(given.router_input, given.experts_input, {}).y_Td;
  loss_of(y, 0).backward();
  const at::Tensor x_gradient = given.experts_input.grad();
  whole->eval();
  const torch::Tensor evaluated =
      whole->forward(given.router_input, given.experts_input, {}).y_Td.detach();
  test::run_processes(size, {.expert_parallel_size = num_expert_ranks}, [&](const auto& processes) {
    nn::MoELayer layer = given.make();
    layer->experts->shard(processes);
    EXPECT_EQ(layer->experts->num_experts(), whole->experts->num_experts() / num_expert_ranks);
    nn::set_batch_shard(*layer, {processes});
    const int64_t tokens = y.size(0) / size, first = processes->rank() * tokens;
    at::Tensor x = given.experts_input.detach().narrow(0, first, tokens).clone();
    x.requires_grad_(given.experts_input.requires_grad());
    const at::Tensor router_input = given.router_input.narrow(0, first, tokens);
    const at::Tensor own = layer->forward(router_input, x, {}).y_Td;
    expect_near(own, y.narrow(0, first, tokens), "output");
    loss_of(own, first).backward();
    expect_same_gradients(layer, whole, *processes);
    if (x_gradient.defined()) {
      expect_near(x.grad(), x_gradient.narrow(0, first, tokens), "gradient of the input");
    }
    layer->eval();
    const torch::NoGradGuard no_grad;
    nn::set_batch_shard(*layer, {processes, /*is_sharded=*/false});
    expect_near(layer->forward(given.router_input, given.experts_input, {}).y_Td, evaluated,
                "output of a batch that every process has");
    layer->experts->unshard();
    const auto tensors = whole->named_buffers();
    for (const auto& item : layer->named_buffers()) {
      expect_near(item.value(), tensors[item.key()], item.key());
    }
    const auto parameters = whole->named_parameters();
    ASSERT_EQ(layer->named_parameters().keys(), parameters.keys());
    for (const auto& item : layer->named_parameters()) {
      expect_near(item.value(), parameters[item.key()], item.key());
    }
    expect_near(layer->forward(given.router_input, given.experts_input, {}).y_Td, evaluated,
                "output of all experts");
  });
}

/// Returns a layer of four experts in float64, of which a token selects two.
nn::MoELayer layer_of(std::shared_ptr<nn::Experts> experts, int64_t width) {
  const nn::RouterOptions router{.width = width, .num_experts = 4, .rule = RouteOptions{.k = 2}};
  nn::MoELayer layer(router, std::move(experts), nn::make_generator(8));
  layer->to(at::kDouble);
  return layer;
}

void expect_same_in_groups(const SharedLayerCase& given) {
  for (const auto& [size, num_expert_ranks] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    given.experts_input.mutable_grad() = at::Tensor();
    expect_same_as_whole(given, size, num_expert_ranks);
  }
}

TEST(SharedExperts, MapsOfExpertsComeBackSideBySide) {
  const nn::MapExpertsOptions options{
      .num_experts = 4, .channels = 3, .side = 4, .patch = 2, .num_outputs = 2, .kernel = 3};
  SharedLayerCase given;
  given.make = [options] {
    nn::RouterOptions router{.width = 12, .num_experts = 4};
    router.rule = RouteOptions{
        .kind = RoutingKind::expert_choice, .l = 2, .gate = Gate::softmax_tokens, .group_size = 4};
    const nn::MapExperts experts(options, nn::make_generator(3));
    nn::MoELayer layer(router, experts.ptr(), nn::make_generator(4));
    layer->to(at::kDouble);
    return layer;
  };
  torch::manual_seed(2);
  given.experts_input = torch::randn({8 * 4, 12}, at::kDouble).requires_grad_();
  given.router_input = given.experts_input.detach();
  expect_same_in_groups(given);
}

TEST(SharedExperts, FiltersComputeTheRowsOfOtherProcesses) {
  SharedLayerCase given;
  given.make = [] {
    const ClusterMoEConfig config{
        .num_patches = 2, .width = 3, .num_filters = 6, .init_scale = 1.0};
    return layer_of(nn::FilterExperts(config, 4, nn::make_generator(7)).ptr(), config.width);
  };
  torch::manual_seed(5);
  given.experts_input = torch::randn({8, 2, 3}, at::kDouble).requires_grad_();
  given.router_input = given.experts_input.detach().sum(1);
  expect_same_in_groups(given);
}

TEST(SharedExperts, PatchesComputeTheRowsOfOtherProcesses) {
  SharedLayerCase given;
  given.make = [] {
    const PMoEConfig config{
        .patch_size = 2, .num_classes = 3, .num_experts = 4, .num_neurons = 6, .init_std = 1.0};
    return layer_of(nn::PatchExperts(config, nn::make_generator(7)).ptr(), config.width());
  };
  torch::manual_seed(6);
  given.experts_input = torch::randn({8, 4}, at::kDouble).requires_grad_();
  given.router_input = given.experts_input.detach();
  expect_same_in_groups(given);
}

/// Without the input's gradient: one process rounds the sum over a token's rows, several each row.
TEST(SharedExperts, RoundedRowsAreThoseOfOneProcess) {
  SharedLayerCase given;
  given.make = [] {
    nn::MoELayer layer(nn::MoELayerOptions{.width = 4,
                                           .hidden = 6,
                                           .num_experts = 4,
                                           .bfloat16 = true,
                                           .rule = RouteOptions{.k = 2}},
                       /*seed=*/9);
    layer->to(at::kDouble);
    return layer;
  };
  torch::manual_seed(7);
  given.experts_input = given.router_input = torch::randn({8, 4}, at::kDouble);
  expect_same_in_groups(given);
}

/// Images go to networks by the first of the router's inputs; one network gets none.
TEST(SharedExperts, NetworksOfImagesKeepTheirNames) {
  const nn::ImageNetworkOptions options{.channels = 1, .side = 8, .num_classes = 3, .width = 0.1};
  SharedLayerCase given;
  given.make = [options] {
    const nn::RouterOptions router{.width = 4, .num_experts = 4, .rule = RouteOptions{.k = 1}};
    const nn::ImageExperts experts("resnet18", 4, options, nn::make_generator(5));
    nn::MoELayer layer(router, experts.ptr(), nn::make_generator(6));
    const torch::NoGradGuard no_grad;
    layer->router->weight.copy_(at::eye(4) * 0.5);
    layer->to(at::kDouble);
    return layer;
  };
  torch::manual_seed(4);
  given.experts_input = torch::randn({8, 1, 8, 8}, at::kDouble);
  for (const std::vector<int64_t>& to : std::vector<std::vector<int64_t>>{
           {0, 1, 3, 0, 3, 1, 0, 3}, {0, 1, 0, 1, 1, 0, 1, 0}, {3, 3, 3, 3, 3, 3, 3, 3}}) {
    given.router_input = at::one_hot(at::tensor(to, at::kLong), 4).to(at::kDouble);
    expect_same_as_whole(given, 2, 2);
    expect_same_as_whole(given, 4, 2);
    expect_same_as_whole(given, 4, 4);
  }
}

}  // namespace
}  // namespace moesaic
