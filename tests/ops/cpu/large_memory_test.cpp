// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace moesaic::ops {
namespace {

constexpr int64_t kNumbers = 2 << 20;
constexpr size_t kBytes = kNumbers * sizeof(float);

const void* block_of(const at::Tensor& tensor) {
  return tensor.const_data_ptr();
}

TEST(LargeMemory, AFreedBlockServesTheNextOfItsSize) {
  free_cached_memory();
  const void* first = nullptr;
  {
    const at::Tensor a = empty_large({kNumbers / 4, 4}, torch::kFloat);
    EXPECT_EQ(a.sizes(), (std::vector<int64_t>{kNumbers / 4, 4}));
    EXPECT_TRUE(a.is_contiguous());
    first = block_of(a);
    const at::Tensor b = empty_large({kNumbers}, torch::kFloat);
    EXPECT_NE(block_of(b), first);
    a.fill_(1.0);
    b.fill_(2.0);
    EXPECT_EQ(a.sum().item<float>(), static_cast<float>(kNumbers));
    EXPECT_EQ(cached_memory_bytes(), 0u);
  }
  EXPECT_EQ(cached_memory_bytes(), 2u * kBytes);
  const at::Tensor again = empty_large({kNumbers}, torch::kFloat);
  const at::Tensor other = empty_large({kNumbers}, torch::kFloat);
  EXPECT_TRUE(block_of(again) == first || block_of(other) == first);
  EXPECT_NE(block_of(again), block_of(other));
  EXPECT_EQ(cached_memory_bytes(), 0u);
}

TEST(LargeMemory, ABlockThatManyTakesPassByIsFreed) {
  free_cached_memory();
  empty_large({kNumbers}, torch::kFloat);
  for (int i = 0; i < 900; ++i) empty_large({2 * kNumbers}, torch::kFloat);
  EXPECT_EQ(cached_memory_bytes(), 3u * kBytes);
  for (int i = 0; i < 200; ++i) empty_large({2 * kNumbers}, torch::kFloat);
  EXPECT_EQ(cached_memory_bytes(), 2u * kBytes);
}

TEST(LargeMemory, IsDividedAmongTheProcessesOfAMachine) {
  free_cached_memory();
  limit_cached_memory(int64_t{1} << 40);  // Each may keep less than a block.
  empty_large({kNumbers}, torch::kFloat);
  EXPECT_EQ(cached_memory_bytes(), 0u);
  limit_cached_memory(1);
  empty_large({kNumbers}, torch::kFloat);
  EXPECT_EQ(cached_memory_bytes(), kBytes);
}

TEST(LargeMemory, SmallTensorsAreLeftToTheLibrary) {
  free_cached_memory();
  empty_large({1000}, torch::kFloat);
  EXPECT_EQ(cached_memory_bytes(), 0u);
}

TEST(LargeMemory, TensorsAreOrdinaryOnes) {
  at::Tensor tensor = empty_large({kNumbers}, torch::kFloat).zero_();
  const at::Tensor view = tensor.slice(0, 5, 9);
  tensor.resize_({2 * kNumbers});
  EXPECT_EQ(tensor.slice(0, 0, kNumbers).abs().sum().item<float>(), 0.0F);
  tensor = at::Tensor();
  EXPECT_EQ(view.sum().item<float>(), 0.0F);  // a view keeps its block
  EXPECT_EQ(empty_large({0, 3}, torch::kFloat).numel(), 0);
  EXPECT_EQ(empty_large({2, 3}, torch::kDouble).scalar_type(), torch::kDouble);
}

TEST(LargeMemory, CachedBlocksCanBeGivenBack) {
  at::Tensor tensor = empty_large({kNumbers}, torch::kFloat);
  tensor = at::Tensor();
  EXPECT_GE(cached_memory_bytes(), kBytes);
  free_cached_memory();
  EXPECT_EQ(cached_memory_bytes(), 0u);
  EXPECT_EQ(empty_large({kNumbers}, torch::kFloat).fill_(3.0).mean().item<float>(), 3.0F);
}

}  // namespace
}  // namespace moesaic::ops
