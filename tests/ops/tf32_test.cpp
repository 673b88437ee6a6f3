// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/tf32.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/tensors.h"

namespace moesaic {
namespace {

bool products() {
  return at::globalContext().allowTF32CuBLAS();
}
bool convolutions() {
  return at::globalContext().allowTF32CuDNN();
}

TEST(Tf32, HoldsWhileItLives) {
  const bool before[] = {products(), convolutions()};
  {
    const Tf32 allowed(true);
    EXPECT_TRUE(products() && convolutions());
    {
      const Tf32 refused(false);
      EXPECT_FALSE(products() || convolutions());
    }
    EXPECT_TRUE(products() && convolutions());
  }
  EXPECT_EQ(products(), before[0]);
  EXPECT_EQ(convolutions(), before[1]);
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
