// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moesaic {
namespace {

TEST(Moments, AreThoseOfASample) {
  const Moments found = moments({1.0, 2.0, 6.0});
  EXPECT_EQ(found.mean, 3.0);
  EXPECT_NEAR(found.std.value(), std::sqrt(7.0), 1e-15) << "(4 + 1 + 9) / 2";
  EXPECT_EQ(found.n, 3);
  EXPECT_NEAR(found.standard_error().value(), std::sqrt(7.0 / 3.0), 1e-15);
  EXPECT_NEAR(found.confidence_half_width().value(), 4.302652729749464 * std::sqrt(7.0 / 3.0),
              1e-12);
}

TEST(Moments, OfOneValueHaveNoSpread) {
  const Moments found = moments({2.5});
  EXPECT_EQ(found.mean, 2.5);
  EXPECT_FALSE(found.std || found.standard_error() || found.confidence_half_width());
  EXPECT_EQ(moments({2.5, 2.5}).confidence_half_width(), 0.0);
}

TEST(TQuantile, IsThatOfTables) {
  for (const auto& [degrees, t] :
       {std::pair(1, 12.706204736432095), std::pair(2, 4.302652729749464),
        std::pair(3, 3.182446305284263), std::pair(4, 2.776445105197793),
        std::pair(9, 2.262157162798205), std::pair(14, 2.144786687917804),
        std::pair(30, 2.042272456301238), std::pair(120, 1.979930405082422)}) {
    EXPECT_NEAR(t_quantile(0.95, degrees), t, 1e-9 * t) << degrees;
  }
  EXPECT_NEAR(t_quantile(0.5, 1), 1.0, 1e-12) << "tan(pi / 4)";
  EXPECT_NEAR(t_quantile(0.99, 5), 4.032142983557536, 1e-9);
  EXPECT_NEAR(t_quantile(0.95, 100'001), 1.959987, 1e-6) << "almost the normal distribution's";
}

}  // namespace
}  // namespace moesaic
