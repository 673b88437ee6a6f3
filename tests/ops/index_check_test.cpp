// SPDX-License-Identifier: Apache-2.0
// The operators are open to every caller: indices that no routing would contain have to end in an
// error.
#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"
#include "moesaic/ops/routed_mlp.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

Routing good_routing() {
  return route(randn({6, 3}, 1, torch::kFloat), {.k = 2});
}

at::Tensor with(const at::Tensor& index, int64_t place, int64_t value) {
  at::Tensor changed = index.clone();
  changed[place] = value;
  return changed;
}

void expect_refused(const Routing& routing, bool by_dispatch, bool by_combine) {
  if (by_dispatch) {
    EXPECT_THROW(dispatch(torch::ones({6, 2}), routing), Error);
  }
  if (by_combine) {
    EXPECT_THROW(combine(torch::ones({12, 2}), routing), Error);
  }
}

TEST(IndexChecks, DispatchAndCombineRefuseIndicesOutOfRange) {
  const Routing good = good_routing();
  EXPECT_NO_THROW(dispatch(torch::ones({6, 2}), good));
  EXPECT_NO_THROW(combine(torch::ones({12, 2}), good));
  const auto changed = [&](at::Tensor Routing::*member, int64_t place, int64_t value) {
    Routing bad = good;
    bad.*member = with(good.*member, place, value);
    return bad;
  };
  for (const int64_t value : {-1, 6, 1 << 30}) {
    expect_refused(changed(&Routing::token, 3, value), true, false);
  }
  for (const int64_t value : {-1, 12, 1 << 30}) {
    const int64_t end = value > 0 ? value + 1 : value;
    expect_refused(changed(&Routing::token_row, 5, value), true, true);
    expect_refused(changed(&Routing::token_offsets, 2, value), true, true);
    expect_refused(changed(&Routing::token_offsets, 6, end), true, true);
    expect_refused(changed(&Routing::offsets, 3, end), true, false);
  }
}

TEST(IndexChecks, DispatchAndCombineRefuseWrongShapesAndTypes) {
  const Routing good = good_routing();
  const at::Tensor empty = torch::empty({0}, torch::kInt);
  for (const auto member :
       {&Routing::offsets, &Routing::token, &Routing::token_offsets, &Routing::token_row}) {
    const bool of_combine = member == &Routing::token_offsets || member == &Routing::token_row;
    for (const at::Tensor& wrong :
         {(good.*member).to(torch::kLong), (good.*member).unsqueeze(0), empty,
          torch::zeros({}, torch::kInt), (good.*member).to(torch::kMeta)}) {
      Routing bad = good;
      bad.*member = wrong;
      expect_refused(bad, !wrong.is_meta(), of_combine && !wrong.is_meta());
    }
  }
}

/// The same indices, among others that no kernel may follow.
Routing strided(const Routing& routing) {
  const auto apart = [](const at::Tensor& index) {
    return torch::stack({index, torch::full_like(index, 1 << 30)}, 1).select(1, 0);
  };
  Routing same = routing;
  for (at::Tensor* index : {&same.offsets, &same.token, &same.token_offsets, &same.token_row}) {
    *index = apart(*index);
  }
  return same;
}

TEST(IndexChecks, StridedIndicesGiveTheSame) {
  const Routing good = good_routing(), same = strided(good);
  at::Tensor x = randn({6, 2}, 3, torch::kFloat).set_requires_grad(true);
  at::Tensor y = x.detach().clone().set_requires_grad(true);
  const at::Tensor wanted = combine(dispatch(x, good), good);
  const at::Tensor found = combine(dispatch(y, same), same);
  EXPECT_TRUE(torch::equal(wanted, found));
  wanted.square().sum().backward();
  found.square().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), y.grad()));
}

TEST(IndexChecks, StridedIndicesGiveTheSameInExperts) {
  const Routing good = good_routing(), same = strided(good);
  const auto run = [](const Routing& routing, const char* way) {
    ExpertWeights weights{randn({3, 2, 4}, 4), randn({3, 4}, 5), randn({3, 4, 2}, 6),
                          randn({3, 2}, 7)};
    weights.w1.set_requires_grad(way == std::string("gradient"));
    const at::Tensor x = randn({6, 2}, 8);
    if (way == std::string("fused")) {
      Routing wide = routing;
      wide.gate = routing.gate.to(torch::kDouble);
      return routed_mlp(x, wide, weights, Activation::gelu);
    }
    const at::Tensor y =
        grouped_mlp(dispatch(x, routing), routing.offsets, weights, Activation::gelu);
    if (!weights.w1.requires_grad()) return y;
    y.square().sum().backward();
    return weights.w1.grad();
  };
  for (const char* way : {"grouped", "gradient", "fused"}) {
    EXPECT_TRUE(torch::equal(run(good, way), run(same, way))) << way;
  }
}

TEST(IndexChecks, GradientsRefuseIndicesOutOfRange) {
  const auto dispatch_backward =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("moesaic::dispatch_backward", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  using Optional = const std::optional<at::Tensor>&;
  const auto combine_op = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("moesaic::combine_backward", "")
                              .typed<std::tuple<at::Tensor, at::Tensor>(
                                  const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                  const at::Tensor&, const at::Tensor&, Optional, Optional)>();
  const auto combine_backward = [&](const auto&... arguments) {
    return combine_op.call(arguments..., std::nullopt, std::nullopt);
  };
  const Routing good = good_routing();
  const at::Tensor rows = torch::ones({12, 2}), grad = torch::ones({6, 2});
  const at::Tensor far = with(good.token_row, 0, 12), many = with(good.token_offsets, 6, 13);
  EXPECT_NO_THROW(dispatch_backward.call(rows, good.token_offsets, good.token_row));
  EXPECT_THROW(dispatch_backward.call(rows, good.token_offsets, far), Error);
  EXPECT_THROW(dispatch_backward.call(rows, many, good.token_row), Error);
  EXPECT_THROW(dispatch_backward.call(rows[0], good.token_offsets, good.token_row), Error);
  EXPECT_NO_THROW(combine_backward(grad, rows, good.gate, good.token_offsets, good.token_row));
  EXPECT_THROW(combine_backward(grad, rows, good.gate, good.token_offsets, far), Error);
  EXPECT_THROW(combine_backward(grad, rows, good.gate, many, good.token_row), Error);
  EXPECT_THROW(combine_backward(rows, rows, good.gate, good.token_offsets, good.token_row), Error);
}

TEST(IndexChecks, GroupedMlpRefusesOffsetsOutOfRange) {
  const ExpertWeights weights{torch::ones({2, 3, 4}), torch::ones({2, 4}), torch::ones({2, 4, 3}),
                              torch::ones({2, 3})};
  const at::Tensor rows = torch::ones({5, 3});
  const auto run = [&](std::vector<int32_t> offsets) {
    return grouped_mlp(rows, torch::tensor(offsets, torch::kInt), weights, Activation::relu);
  };
  EXPECT_NO_THROW(run({0, 2, 5}));
  EXPECT_THROW(run({0, 2, 6}), Error);
  EXPECT_THROW(run({0, 7, 5}), Error);
  EXPECT_THROW(run({-1, 2, 5}), Error);
  EXPECT_THROW(run({1, 2, 5}), Error);
}

TEST(IndexChecks, ExpertsRefuseTensorsOfAnotherDevice) {
  const Routing good = good_routing();
  const at::Tensor rows = torch::ones({12, 2});
  const auto weights = [](int64_t elsewhere) {
    std::vector<at::Tensor> all = {torch::ones({3, 2, 4}), torch::ones({3, 4}),
                                   torch::ones({3, 4, 2}), torch::ones({3, 2})};
    if (elsewhere < 4) all[elsewhere] = all[elsewhere].to(torch::kMeta);
    return ExpertWeights{all[0], all[1], all[2], all[3]};
  };
  EXPECT_NO_THROW(grouped_mlp(rows, good.offsets, weights(4), Activation::relu));
  for (const int64_t which : {0, 1, 2, 3}) {
    EXPECT_THROW(grouped_mlp(rows, good.offsets, weights(which), Activation::relu), Error);
  }
  EXPECT_THROW(grouped_mlp(rows, good.offsets.to(torch::kMeta), weights(4), Activation::relu),
               Error);
  Routing bad = good;
  bad.gate = good.gate.to(torch::kMeta);
  EXPECT_THROW(routed_mlp(torch::ones({6, 2}), bad, weights(4), Activation::relu), Error);
}

TEST(IndexChecks, RoutedMlpRefusesHalvesThatDiffer) {
  Routing bad = good_routing();
  const ExpertWeights weights{torch::ones({3, 2, 1}), torch::ones({3, 1}), torch::ones({3, 1, 2}),
                              torch::ones({3, 2})};
  const at::Tensor x = torch::ones({6, 2});
  EXPECT_NO_THROW(routed_mlp(x, bad, weights, Activation::relu));
  bad.token_offsets = with(bad.token_offsets, 6, 11);
  EXPECT_THROW(routed_mlp(x, bad, weights, Activation::relu), Error);
}

TEST(IndexChecks, RoutedMlpRefusesHalvesThatDifferByMoreThanItsBufferHolds) {
  const int64_t tokens = 4000, width = 2000;
  const ExpertWeights weights{torch::ones({1, width, 1}), torch::ones({1, 1}),
                              torch::ones({1, 1, width}), torch::ones({1, width})};
  const at::Tensor x = torch::ones({tokens, width});
  const auto run = [&](const Routing& routing) {
    return routed_mlp(x, routing, weights, Activation::relu);
  };
  const Routing good = route(torch::zeros({tokens, 1}), {.k = 1});
  EXPECT_NO_THROW(run(good));
  Routing bad = good;
  bad.token_offsets = torch::zeros_like(good.token_offsets);
  EXPECT_THROW(run(bad), Error);
  bad = good;
  bad.token_offsets = with(torch::zeros_like(good.token_offsets), tokens, tokens);
  bad.token = torch::full_like(good.token, tokens - 1);
  EXPECT_THROW(run(bad), Error);
  bad = good;
  bad.token = good.token.flip(0);
  EXPECT_THROW(run(bad), Error);
}

}  // namespace
}  // namespace moesaic
