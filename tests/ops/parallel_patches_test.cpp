// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/parallel_patches.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "support/tensors.h"

namespace moesaic {
namespace {

using testing::expect_close;
using testing::randn;

/// [T, 4, d]: three patches of each are multiples of one of five directions, in changing places.
at::Tensor some_inputs(int64_t tokens, int64_t width, at::ScalarType type) {
  const at::Tensor directions = randn({5, width}, 1);
  at::Tensor x = randn({tokens, 4, width}, 2);
  const at::Tensor scale = randn({tokens, 4}, 3);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t p = 0; p < 4; ++p) {
      if (p != t % 4) x[t][p].copy_(scale[t][p] * directions[(3 * t + p) % 5]);
    }
  }
  return x.to(type);
}

at::Tensor written_out(const ParallelPatches& read) {
  at::Tensor x = torch::empty({read.which.size(0), read.which.size(1), read.directions.size(1)},
                              read.directions.options());
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t p = 0; p < x.size(1); ++p) {
      const int64_t which = read.which[t][p].item<int32_t>();
      x[t][p].copy_(which < 0 ? read.rest[-1 - which] : read.scale[t][p] * read.directions[which]);
    }
  }
  return x;
}

TEST(ParallelPatches, AreTheInputsAgain) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const at::Tensor x = some_inputs(400, 7, type);
    const auto read = find_parallel_patches(x);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->directions.size(0), 5);
    EXPECT_EQ(read->rest.size(0), 400);
    EXPECT_EQ(read->scale.scalar_type(), type);
    for (int64_t t = 0; t < 400; ++t) EXPECT_LT(read->which[t][t % 4].item<int32_t>(), 0);
    expect_close(written_out(*read), x, type == torch::kFloat ? 2e-6 : 1e-14);
  }
}

TEST(ParallelPatches, ZerosAreMultiplesAndNearlyParallelIsNot) {
  at::Tensor x = some_inputs(400, 7, torch::kFloat);
  x[3][0].zero_();
  x[5][2][0] += 1e-4 * x[5][2].abs().max();
  const auto read = find_parallel_patches(x);
  ASSERT_TRUE(read.has_value());
  EXPECT_GE(read->which[3][0].item<int32_t>(), 0);
  EXPECT_EQ(read->scale[3][0].item<float>(), 0.0F);
  EXPECT_LT(read->which[5][2].item<int32_t>(), 0);
  expect_close(written_out(*read), x, 2e-6);
}

TEST(ParallelPatches, AreNotFoundWhereThereAreFew) {
  EXPECT_FALSE(find_parallel_patches(randn({300, 4, 7}, 1)).has_value());
  EXPECT_FALSE(find_parallel_patches(randn({0, 4, 7}, 1)).has_value());
  at::Tensor x = some_inputs(400, 7, torch::kDouble);
  x.slice(0, 0, 200) = randn({200, 4, 7}, 9);
  EXPECT_FALSE(find_parallel_patches(x).has_value());
}

TEST(ParallelPatches, RefuseWhatDoesNotFit) {
  EXPECT_THROW(find_parallel_patches(torch::zeros({3, 4})), Error);
  EXPECT_THROW(find_parallel_patches(torch::zeros({3, 4, 5}, torch::kInt)), Error);
  EXPECT_THROW(find_parallel_patches(torch::zeros({3, 4, 5}, torch::kMeta)), Error);
}

}  // namespace
}  // namespace moesaic
