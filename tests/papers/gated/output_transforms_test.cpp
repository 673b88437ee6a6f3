// SPDX-License-Identifier: Apache-2.0
#include "papers/gated/losses.h"

#include <cmath>
#include <functional>
#include <numbers>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

/// E[f(Z)] by the trapezoidal rule, with a node on the kink at 0.
double mean(const std::function<double(double)>& f) {
  constexpr int kHalf = 60000;
  constexpr double kStep = 12.0 / kHalf;
  double sum = 0.0;
  for (int i = -kHalf; i <= kHalf; ++i) {
    const double z = i * kStep;
    sum += std::exp(-z * z / 2.0) * f(z);
  }
  return sum * kStep / std::sqrt(2.0 * std::numbers::pi);
}

TEST(OutputTransforms, OfTheIdentityAreThePapers) {
  for (const double s2 : {0.0, 0.0025, 1.0}) {
    const OutputTransforms found = output_transforms(Link::identity, std::sqrt(s2));
    EXPECT_NEAR(found.alpha, 0.0, 1e-9);
    EXPECT_NEAR(found.beta, -6.0 * (1.0 + s2), 1e-9);
    EXPECT_NEAR(found.gamma, 0.0, 1e-9);
    // The paper's "- 6" is a misprint.
    EXPECT_NEAR(found.e4, 3.0 + 3.0 * s2 * s2 + 6.0 * s2, 1e-9);
    EXPECT_NEAR(found.delta, 0.0, 1e-9);
    EXPECT_NEAR(found.e2, -(1.0 + s2), 1e-9);
    EXPECT_NEAR(found.c4, 24.0, 1e-8);
    EXPECT_NEAR(found.c2, 2.0, 1e-9);
  }
}

TEST(OutputTransforms, OfReluSolveTheEquationsOfItsMoments) {
  // E[g^p Z^q] = (p + q - 1)!! / 2 times sqrt(2 / pi) where p + q is odd.
  const double h = std::sqrt(2.0 / std::numbers::pi), s2 = 0.09;
  const OutputTransforms found = output_transforms(Link::relu, 0.3);
  const auto first = 0.5 * h * 8.0 + 6.0 * s2 * 0.5 * h * 2.0 +
                     found.alpha * (1.5 + 3.0 * s2 * 0.5) + found.beta * 0.5 * h * 2.0 +
                     found.gamma * 0.5;
  EXPECT_NEAR(first, 0.0, 1e-9);
  EXPECT_NEAR(found.delta, -2.0 * h, 1e-9);
}

TEST(OutputTransforms, SatisfyBothConditions) {
  constexpr double kNoise = 0.3, kVariance = kNoise * kNoise;
  for (const Link link :
       {Link::identity, Link::relu, Link::leaky_relu, Link::sigmoid, Link::tanh, Link::softplus}) {
    SCOPED_TRACE(kLinkNames.at(static_cast<size_t>(link)));
    const OutputTransforms t = output_transforms(link, kNoise);
    const auto s4 = [&](double z) {
      const double v = link_at(link, z), v2 = v * v;
      return v2 * v2 + 6.0 * v2 * kVariance + 3.0 * kVariance * kVariance +
             t.alpha * (v2 * v + 3.0 * v * kVariance) + t.beta * (v2 + kVariance) + t.gamma * v +
             t.e4;
    };
    const auto s2 = [&](double z) {
      const double v = link_at(link, z);
      return v * v + kVariance + t.delta * v + t.e2;
    };
    EXPECT_NEAR(mean(s4), 0.0, 1e-7);
    EXPECT_NEAR(mean([&](double z) { return s4(z) * z; }), 0.0, 1e-7);
    EXPECT_NEAR(mean([&](double z) { return s4(z) * (z * z - 1); }), 0.0, 1e-7);
    EXPECT_NEAR(mean([&](double z) { return s4(z) * (z * z * z - 3 * z); }), 0.0, 1e-7);
    EXPECT_NEAR(mean([&](double z) { return s4(z) * (z * z * z * z - 6 * z * z + 3); }), t.c4,
                1e-6);
    EXPECT_NEAR(mean(s2), 0.0, 1e-7);
    EXPECT_NEAR(mean([&](double z) { return s2(z) * z; }), 0.0, 1e-7);
    EXPECT_NEAR(mean([&](double z) { return s2(z) * (z * z - 1); }), t.c2, 1e-7);
    EXPECT_GT(std::abs(t.c4), 1e-4);
    EXPECT_GT(std::abs(t.c2), 1e-3);
  }
}

TEST(OutputTransforms, RefuseALinkOfTwoValuesWithTheReason) {
  EXPECT_THAT(test::usage_of([] { output_transforms(Link::step, 0.05); }),
              AllOf(HasSubstr("link 'step' is not valid for L4"), HasSubstr("S4''''")));
}

}  // namespace
}  // namespace moesaic
