// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/tf32.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/tensors.h"

namespace moesaic {
namespace {

bool tf32_products() {
  return at::globalContext().allowTF32CuBLAS();
}
bool tf32_convolutions() {
  return at::globalContext().allowTF32CuDNN();
}

TEST(Tf32, HoldsWhileItLives) {
  const bool before[] = {tf32_products(), tf32_convolutions()};
  {
    const Tf32 allowed(true);
    EXPECT_TRUE(tf32_products() && tf32_convolutions());
    {
      const Tf32 refused(false);
      EXPECT_FALSE(tf32_products() || tf32_convolutions());
    }
    EXPECT_TRUE(tf32_products() && tf32_convolutions());
  }
  EXPECT_EQ(tf32_products(), before[0]);
  EXPECT_EQ(tf32_convolutions(), before[1]);
}

TEST(Tf32, LeavesTheCpuAsItIs) {
  const at::Tensor a = testing::randn({64, 300}, 1, torch::kFloat);
  const at::Tensor b = testing::randn({300, 64}, 2, torch::kFloat);
  const at::Tensor exact = a.mm(b);
  const Tf32 allowed(true);
  EXPECT_TRUE(torch::equal(a.mm(b), exact));
}

}  // namespace
}  // namespace moesaic
