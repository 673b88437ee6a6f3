// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/product_choice.h"

#include <gtest/gtest.h>

#include "base/support.h"

namespace moesaic::ops {
namespace {

using test::ScopedEnv;
using test::usage_of;

TEST(ProductChoice, IsTheLibrarysUnlessAskedOtherwise) {
  const ScopedEnv nothing("MOESAIC_CUDA_PRODUCT", std::nullopt);
  EXPECT_EQ(product_choice(), ProductChoice::library);
  const ScopedEnv empty("MOESAIC_CUDA_PRODUCT", "");
  EXPECT_EQ(product_choice(), ProductChoice::library);
}

TEST(ProductChoice, IsTakenFromTheScopedEnvAtEveryCall) {
  for (const auto& [name, choice] :
       {std::pair{"library", ProductChoice::library}, {"portable", ProductChoice::portable}}) {
    const ScopedEnv asked("MOESAIC_CUDA_PRODUCT", name);
    EXPECT_EQ(product_choice(), choice) << name;
  }
}

TEST(ProductChoice, AnUnknownOneIsRefusedWithTheNearest) {
  const ScopedEnv asked("MOESAIC_CUDA_PRODUCT", "libary");
  EXPECT_EQ(usage_of([] { product_choice(); }),
            "MOESAIC_CUDA_PRODUCT: unknown product 'libary'; did you mean 'library'?");
}

}  // namespace
}  // namespace moesaic::ops
