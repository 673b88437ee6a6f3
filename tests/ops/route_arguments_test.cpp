// SPDX-License-Identifier: Apache-2.0
#include "ops/route_arguments.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace moesaic {
namespace {

const RouteOptions kTokenChoice{.k = 3,
                                .gate = Gate::logit,
                                .capacity = {.factor = 1.25,
                                             .rounding = CapacityRounding::round,
                                             .multiple_of = 9,
                                             .rows = 11,
                                             .batch_priority = true},
                                .group_size = 17,
                                .kept = {1, 4},
                                .pruned = PrunedSelection::reroute};
const RouteOptions kExpertChoice{
    .kind = RoutingKind::expert_choice,
    .l = 5,
    .gate = Gate::softmax_all,
    .capacity = {.factor = 1.5, .rounding = CapacityRounding::round, .multiple_of = 7},
    .group_size = 19,
    .kept = {0, 2, 3},
    .pruned = PrunedSelection::reroute};

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
      RouteOptions{.kind = RoutingKind::threshold, .threshold = 0.25, .kept = {2}});
}

TEST(RouteArguments, AreUnpackedIntoTheFieldsOfTheirNames) {
  const RouteOptions token =
      ops::TokenChoicePacking::unpack(3, 2, 1.25, 17, {1, 4}, true, false, 1, 9, 11);
  EXPECT_EQ(token.k, 3);
  EXPECT_EQ(token.gate, Gate::logit);
  EXPECT_EQ(token.capacity.factor, 1.25);
  EXPECT_EQ(token.group_size, 17);
  EXPECT_EQ(token.kept, (std::vector<int64_t>{1, 4}));
  EXPECT_TRUE(token.capacity.batch_priority);
  EXPECT_EQ(token.pruned, PrunedSelection::zero);
  EXPECT_EQ(token.capacity.rounding, CapacityRounding::round);
  EXPECT_EQ(token.capacity.multiple_of, 9);
  EXPECT_EQ(token.capacity.rows, 11);
  const RouteOptions expert = ops::ExpertChoicePacking::unpack(5, 1.5, 19, 2, {0}, true, 1, 7);
  EXPECT_EQ(expert.capacity.rows, 5);
  EXPECT_EQ(expert.capacity.factor, 1.5);
  EXPECT_EQ(expert.group_size, 19);
  EXPECT_EQ(expert.gate, Gate::softmax_all);
  EXPECT_EQ(expert.kept, (std::vector<int64_t>{0}));
  EXPECT_EQ(expert.pruned, PrunedSelection::reroute);
  EXPECT_EQ(expert.capacity.rounding, CapacityRounding::round);
  EXPECT_EQ(expert.capacity.multiple_of, 7);
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
  expect_schema_defaults<ops::TokenChoicePacking, ops::TokenChoiceOperator>(RouteOptions{});
  expect_schema_defaults<ops::ExpertChoicePacking, ops::ExpertChoiceOperator>(
      RouteOptions{.kind = RoutingKind::expert_choice, .gate = Gate::softmax_selected});
  expect_schema_defaults<ops::AdaptivePacking, ops::AdaptiveOperator>(
      RouteOptions{.kind = RoutingKind::threshold});
}

}  // namespace
}  // namespace moesaic
