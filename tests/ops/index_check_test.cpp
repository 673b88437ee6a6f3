// SPDX-License-Identifier: Apache-2.0
// The operators are open to every caller: indices that no routing would contain have to end in an
// error.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/ops/combine.h"
#include "moesaic/ops/dispatch.h"
#include "moesaic/ops/grouped_mlp.h"
#include "moesaic/ops/route.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::randn;

Routing good_routing() {
  return route_token_choice(randn({6, 3}, 1, torch::kFloat), {.k = 2});
}

at::Tensor with(const at::Tensor& index, int64_t place, int64_t value) {
  at::Tensor changed = index.clone();
  changed[place] = value;
  return changed;
}

void expect_refused(const Routing& routing, bool by_dispatch, bool by_combine) {
  const at::Tensor x = torch::ones({6, 2}), rows = torch::ones({12, 2});
  if (by_dispatch) {
    EXPECT_THROW(dispatch(x, routing), Error);
  }
  if (by_combine) {
    EXPECT_THROW(combine(rows, routing), Error);
  }
}

TEST(IndexChecks, DispatchAndCombineRefuseIndicesOutOfRange) {
  const Routing good = good_routing();
  EXPECT_NO_THROW(dispatch(torch::ones({6, 2}), good));
  EXPECT_NO_THROW(combine(torch::ones({12, 2}), good));
  for (const int64_t value : {-1, 6, 1 << 30}) {
    Routing bad = good;
    bad.token = with(good.token, 3, value);
    expect_refused(bad, true, false);
  }
  for (const int64_t value : {-1, 12, 1 << 30}) {
    Routing bad = good;
    bad.token_row = with(good.token_row, 5, value);
    expect_refused(bad, true, true);
    bad = good;
    bad.token_offsets = with(good.token_offsets, 2, value);
    expect_refused(bad, true, true);
    bad = good;
    bad.token_offsets = with(good.token_offsets, 6, value > 0 ? value + 1 : value);
    expect_refused(bad, true, true);
    bad = good;
    bad.offsets = with(good.offsets, 3, value > 0 ? value + 1 : value);
    expect_refused(bad, true, false);
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

TEST(IndexChecks, StridedIndicesGiveTheSame) {
  const Routing good = good_routing();
  const auto strided = [](const at::Tensor& index) {
    return torch::stack({index, torch::full_like(index, 1 << 30)}, 1).select(1, 0);
  };
  Routing same = good;
  same.offsets = strided(good.offsets);
  same.token = strided(good.token);
  same.token_offsets = strided(good.token_offsets);
  same.token_row = strided(good.token_row);
  at::Tensor x = randn({6, 2}, 3, torch::kFloat).set_requires_grad(true);
  at::Tensor y = x.detach().clone().set_requires_grad(true);
  const at::Tensor wanted = combine(dispatch(x, good), good);
  const at::Tensor found = combine(dispatch(y, same), same);
  EXPECT_TRUE(torch::equal(wanted, found));
  wanted.square().sum().backward();
  found.square().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), y.grad()));
}

TEST(IndexChecks, GradientsRefuseIndicesOutOfRange) {
  const auto dispatch_backward =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("moesaic::dispatch_backward", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  const auto combine_backward = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("moesaic::combine_backward", "")
                                    .typed<std::tuple<at::Tensor, at::Tensor>(
                                        const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        const at::Tensor&, const at::Tensor&)>();
  const Routing good = good_routing();
  const at::Tensor rows = torch::ones({12, 2}), grad = torch::ones({6, 2});
  const at::Tensor far = with(good.token_row, 0, 12), many = with(good.token_offsets, 6, 13);
  EXPECT_NO_THROW(dispatch_backward.call(rows, good.token_offsets, good.token_row));
  EXPECT_THROW(dispatch_backward.call(rows, good.token_offsets, far), Error);
  EXPECT_THROW(dispatch_backward.call(rows, many, good.token_row), Error);
  EXPECT_THROW(dispatch_backward.call(rows[0], good.token_offsets, good.token_row), Error);
  EXPECT_NO_THROW(combine_backward.call(grad, rows, good.gate, good.token_offsets, good.token_row));
  EXPECT_THROW(combine_backward.call(grad, rows, good.gate, good.token_offsets, far), Error);
  EXPECT_THROW(combine_backward.call(grad, rows, good.gate, many, good.token_row), Error);
  EXPECT_THROW(combine_backward.call(rows, rows, good.gate, good.token_offsets, good.token_row),
               Error);
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

}  // namespace
}  // namespace moesaic
