// SPDX-License-Identifier: Apache-2.0
// The composite of token choice against the CPU's kernel, to the bit. Expert choice and thresholds
// are composites on the CPU, too: their operators' tests hold them against plain loops.
#include "ops/route.h"

#include <limits>

#include "support/tensors.h"

namespace moesaic {
namespace {

RouteOptions some_options(uint64_t seed, int64_t experts) {
  RouteOptions options;
  options.k = 1 + static_cast<int64_t>(seed % 3);
  options.gate = static_cast<Gate>(seed % 4);
  options.capacity.factor = seed % 5 < 3 ? 0.3 * static_cast<double>(1 + seed % 5) : 0.0;
  options.capacity.rows = seed % 5 == 3 ? 3 : 0;
  options.group_size = seed % 7 < 4 ? 65 : 0;
  options.capacity.batch_priority = seed % 2 == 0;
  options.pruned = seed % 11 < 5 ? PrunedSelection::reroute : PrunedSelection::zero;
  if (seed % 3 == 1 && experts > 4) options.kept = {0, 2, experts - 2, experts - 1};
  return options;
}

TEST(RouteComposite, OfTokenChoiceEqualsTheKernel) {
  uint64_t seed = 0;
  for (const int64_t tokens : {0, 1, 64, 65, 300}) {
    for (const int64_t experts : {3, 8, 45}) {
      for (int i = 0; i < 60; ++i) {
        const RouteOptions options = some_options(++seed, experts);
        at::Tensor logits =
            randn({tokens, experts}, seed, seed % 4 == 0 ? torch::kDouble : torch::kFloat);
        if (seed % 3 != 0) logits = torch::round(logits * 2) / 2;  // ties
        const auto wanted = ops::TokenChoiceOperator::call(logits, options);
        const auto found = ops::token_choice(logits, options);
        const auto equal = [&]<size_t... i>(std::index_sequence<i...>) {
          return (torch::equal(std::get<i>(found), std::get<i>(wanted)) && ...);
        };
        ASSERT_TRUE(equal(std::make_index_sequence<7>())) << "seed " << seed;
        const auto& choice = std::get<5>(wanted);
        const auto& row = std::get<6>(wanted);
        const at::Tensor grad = randn(std::get<2>(wanted).sizes().vec(), 5, logits.scalar_type());
        expect_close(ops::token_choice_backward(grad, logits, choice, row, options),
                     ops::TokenChoiceBackward::call(grad, logits, choice, row, options),
                     logits.scalar_type() == torch::kDouble ? 1e-12 : 1e-5);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
      }
    }
  }
}

TEST(RouteComposite, RefusesWhatTheKernelRefuses) {
  const auto message = [](const auto& route) -> std::string {
    try {
      route();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    at::Tensor logits = torch::zeros({9, 4});
    logits[5][1] = value;
    logits[7][2] = value;
    const RouteOptions options{.k = 2};
    const std::string wanted = message([&] { ops::TokenChoiceOperator::call(logits, options); });
    EXPECT_EQ(wanted,
              "route_token_choice: the logits of token 5 are NaN, infinite, or all -infinity");
    EXPECT_EQ(message([&] { ops::token_choice(logits, options); }), wanted);
  }
}

}  // namespace
}  // namespace moesaic
