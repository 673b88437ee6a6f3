// SPDX-License-Identifier: Apache-2.0
#include "ops/route_arguments.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace moesaic {
namespace {

const TokenChoiceOptions kTokenChoice{.k = 3,
                                      .gate = Gate::logit,
                                      .capacity_factor = 1.25,
                                      .group_size = 17,
                                      .kept = {1, 4},
                                      .batch_priority = true,
                                      .pruned = PrunedSelection::reroute,
                                      .capacity_rounding = CapacityRounding::round,
                                      .capacity_multiple_of = 9,
                                      .capacity = 11};
const ExpertChoiceOptions kExpertChoice{.rows = 5,
                                        .capacity_factor = 1.5,
                                        .group_size = 19,
                                        .gate = ExpertGate::softmax_experts,
                                        .kept = {0, 2, 3},
                                        .pruned = PrunedSelection::reroute,
                                        .capacity_rounding = CapacityRounding::round,
                                        .capacity_multiple_of = 7};

/// Every argument of pack() reaches its own place again, by the dispatcher's way and by autograd's.
template <class Packing, class Operator, class Options>
void expect_round_trip(const Options& options) {
  const auto packed = Packing::pack(options);
  EXPECT_EQ(Packing::pack(std::apply(&Packing::unpack, packed)), packed);
  EXPECT_EQ(Packing::pack(Operator::restored(Operator::saved(options))), packed);
}

TEST(RouteArguments, ArePackedAndUnpackedWithoutLoss) {
  expect_round_trip<ops::TokenChoicePacking, ops::TokenChoiceOperator>(kTokenChoice);
  expect_round_trip<ops::TokenChoiceBackwardPacking, ops::TokenChoiceBackward>(kTokenChoice);
  expect_round_trip<ops::ExpertChoicePacking, ops::ExpertChoiceOperator>(kExpertChoice);
  expect_round_trip<ops::ExpertChoiceBackwardPacking, ops::ExpertChoiceBackward>(kExpertChoice);
  expect_round_trip<ops::AdaptivePacking, ops::AdaptiveOperator>(
      AdaptiveOptions{.threshold = 0.25, .kept = {2}});
}

TEST(RouteArguments, AreUnpackedIntoTheFieldsOfTheirNames) {
  const TokenChoiceOptions token =
      ops::TokenChoicePacking::unpack(3, 2, 1.25, 17, {1, 4}, true, false, 1, 9, 11);
  EXPECT_EQ(token.k, 3);
  EXPECT_EQ(token.gate, Gate::logit);
  EXPECT_EQ(token.capacity_factor, 1.25);
  EXPECT_EQ(token.group_size, 17);
  EXPECT_EQ(token.kept, (std::vector<int64_t>{1, 4}));
  EXPECT_TRUE(token.batch_priority);
  EXPECT_EQ(token.pruned, PrunedSelection::zero);
  EXPECT_EQ(token.capacity_rounding, CapacityRounding::round);
  EXPECT_EQ(token.capacity_multiple_of, 9);
  EXPECT_EQ(token.capacity, 11);
  const ExpertChoiceOptions expert =
      ops::ExpertChoicePacking::unpack(5, 1.5, 19, 2, {0}, true, 1, 7);
  EXPECT_EQ(expert.rows, 5);
  EXPECT_EQ(expert.capacity_factor, 1.5);
  EXPECT_EQ(expert.group_size, 19);
  EXPECT_EQ(expert.gate, ExpertGate::softmax_experts);
  EXPECT_EQ(expert.kept, (std::vector<int64_t>{0}));
  EXPECT_EQ(expert.pruned, PrunedSelection::reroute);
  EXPECT_EQ(expert.capacity_rounding, CapacityRounding::round);
  EXPECT_EQ(expert.capacity_multiple_of, 7);
}

/// A default of the schema, which Python sees, is the options struct's.
template <class Packing, class Operator, class Options>
void expect_schema_defaults(const Options& options) {
  const auto& schema = c10::Dispatcher::singleton().findSchemaOrThrow(Packing::kName, "").schema();
  const auto packed = Operator::saved(options).toTupleRef().elements().vec();
  const auto& arguments = schema.arguments();
  ASSERT_EQ(arguments.size(), packed.size() + 1) << Packing::kName;
  for (size_t i = 0; i < packed.size(); ++i) {
    const auto& found = arguments[i + 1].default_value();
    if (!found) continue;  // k has none
    EXPECT_EQ(*found, packed[i]) << Packing::kName << " " << arguments[i + 1].name();
  }
}

TEST(RouteArguments, HaveTheDefaultsOfTheirOptions) {
  expect_schema_defaults<ops::TokenChoicePacking, ops::TokenChoiceOperator>(TokenChoiceOptions{});
  expect_schema_defaults<ops::ExpertChoicePacking, ops::ExpertChoiceOperator>(
      ExpertChoiceOptions{});
  expect_schema_defaults<ops::AdaptivePacking, ops::AdaptiveOperator>(AdaptiveOptions{});
}

}  // namespace
}  // namespace moesaic
