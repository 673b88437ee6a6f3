// SPDX-License-Identifier: Apache-2.0
#include "import/vmoe/reference.h"

#include <fmt/format.h>

#include "import/vmoe/fixture.h"
#include "moesaic/config/document.h"
#include "support/matchers.h"

namespace moesaic::testing {
namespace {

using vmoe_checkpoint::Entry;

VMoERules rules_of(const std::string& text) {
  return rules_from_value(Document::from_text(text, "rules.json").root());
}

/// A network whose tensors are arrays of these names and shapes.
std::vector<VMoETensor> target_of(const std::map<std::string, std::vector<int64_t>>& arrays) {
  std::vector<VMoETensor> tensors;
  for (const auto& [name, shape] : arrays)
    tensors.push_back({name, shape, {{name, shape, shape, {}}}});
  return tensors;
}

TEST(VMoERules, TheFirstThatIsFoundDecides) {
  const std::vector<Entry> source = {{"a/head/x", "float32", {2}},
                                     {"a/b", "float32", {2, 3}},
                                     {"c", "bfloat16", {4}},
                                     {"d", "float32", {2}}};
  const VMoEPlan plan =
      plan_moves(source, target_of({{"a/b", {3, 2}}, {"new/c/c", {4}}, {"d", {2, 5}}, {"e", {1}}}),
                 rules_of(R"([["head", ""], ["^a/(.*)$", "params/a/\\1", "reshape"],
                   ["c", "params/new/\\g<0>/\\0"], ["d", "params/d", "expand_tile", 1, 5]])"),
                 "test");
  EXPECT_THAT(plan.dropped, ElementsAre("a/head/x"));
  EXPECT_THAT(plan.fresh, ElementsAre("e"));
  EXPECT_EQ(plan.moves.at("a/b").source.name, "a/b");
  EXPECT_EQ(plan.moves.at("new/c/c").source.name, "c");
  const at::Tensor tiled =
      moved(plan.moves.at("d"), torch::tensor({1.f, 2.f}), {"d", {2, 5}, {2, 5}, {}});
  EXPECT_TRUE(
      torch::equal(tiled, torch::tensor({{1.f, 1.f, 1.f, 1.f, 1.f}, {2.f, 2.f, 2.f, 2.f, 2.f}})));
}

TEST(VMoERules, WhatDoesNotFitIsAnError) {
  const auto refused = [](const std::string& rules, const std::vector<Entry>& source) {
    return test::failure_of([&] {
      plan_moves(source, target_of({{"kernel", {2}}, {"bias", {3}}}), rules_of(rules), "ckpt");
    });
  };
  const Entry kernel{"kernel", "float32", {2}}, bias{"bias", "float32", {3}};
  EXPECT_THAT(refused(R"([["^x", "params/x"]])", {kernel}),
              HasSubstr("no rule for array 'kernel'"));
  EXPECT_THAT(refused(R"([["kernel", "params/kernle"]])", {kernel}),
              HasSubstr("'kernel', renamed 'params/kernle', has no place in the network; did you "
                        "mean 'kernel'?"));
  EXPECT_THAT(refused(R"([["^(.*)$", "\\1"]])", {kernel}), HasSubstr("has no place"));
  EXPECT_THAT(refused(R"([["^.*$", "params/kernel"]])", {kernel, {"other", "float32", {2}}}),
              HasSubstr("'kernel' and 'other' both become 'kernel'"));
  EXPECT_THAT(refused(R"([["^.*$", "params/kernel"]])", {bias}),
              HasSubstr("array 'bias' is [3], the network's 'kernel' is [2]: the shapes differ"));
  EXPECT_THAT(refused(R"([["^.*$", "params/kernel", "reshape"]])", {bias}),
              HasSubstr("reshape keeps the number of elements"));
  EXPECT_THAT(refused(R"([["^.*$", "params/kernel", "expand_tile", 0, 2]])", {kernel}),
              HasSubstr("expand_tile 0 2 makes it [2, 2]"));
  EXPECT_THAT(refused(R"([["^.*$", "params/kernel", "expand_tile", 3, 2]])", {kernel}),
              HasSubstr("no axis 3 among 2"));
  EXPECT_THAT(refused(R"([["^.*$", "params/kernel", "vit_zoom"]])", {kernel}),
              HasSubstr("vit_zoom takes [1, tokens, width]"));
  EXPECT_THAT(refused(R"([["^.*$", "params/kernel"]])", {{"kernel", "int32", {2}}}),
              HasSubstr("array 'kernel' is int32; a parameter is one of float16"));
}

TEST(VMoERules, TheirFileIsNamed) {
  const auto refused = [](const std::string& rules) {
    return test::failure_of([&] {
      plan_moves({{"kernel", "float32", {2}}, {"other", "float32", {2}}},
                 target_of({{"kernel", {2}}}), rules_of(rules), "ckpt", "rules.json");
    });
  };
  EXPECT_EQ(refused(R"([["^x", "params/x"]])"), "ckpt: no rule for array 'kernel' in rules.json");
  EXPECT_EQ(refused(R"([["kernel", "params/kernle"]])"),
            "ckpt: array 'kernel', renamed 'params/kernle', has no place in the network by the "
            "rules of rules.json; did you mean 'kernel'?");
  EXPECT_EQ(refused(R"([["^.*$", "params/kernel"]])"),
            "ckpt: arrays 'kernel' and 'other' both become 'kernel' by the rules of rules.json");
}

/// A matcher that tries one way after another would need 2^60 steps for the first, and would call
/// itself for every character of the second.
TEST(VMoERules, NoPatternTakesForEver) {
  const std::string name = std::string(60, 'a') + "!";
  const std::vector<Entry> source = {{name, "float32", {2}},
                                     {std::string(1000, 'b'), "float32", {2}}};
  const VMoEPlan plan = plan_moves(
      source, target_of({{"x", {2}}}),
      rules_of(R"([["^(a+)+$", ""], ["^(a|aa)+!$", ""], ["^(b|b)*$", "params/x"]])"), "test");
  EXPECT_THAT(plan.dropped, ElementsAre(name));
  EXPECT_TRUE(plan.moves.contains("x"));
}

TEST(VMoERules, EveryPlaceIsReplaced) {
  const auto renamed = [](const std::string& name, const std::string& wanted, const char* rule) {
    const VMoEPlan plan = plan_moves({{name, "float32", {2}}}, target_of({{wanted, {2}}}),
                                     rules_of(fmt::format("[{}]", rule)), "test");
    return plan.moves.contains(wanted);
  };
  EXPECT_TRUE(renamed("params/a_b_c", "a/b/c", R"(["_", "/"])"));
  EXPECT_TRUE(renamed("bc", "bc", R"(["^", "params/"])"));
  EXPECT_TRUE(renamed("mlp_12/w", "block12.mlp/w",
                      R"rule(["^mlp_(?P<n>\\d+)", "params/block\\g<1>.mlp"])rule"));
}

TEST(VMoERules, WrongRulesHaveTheirPlace) {
  const auto refused = [](const std::string& text) {
    return test::usage_of([&] { rules_of(text); });
  };
  EXPECT_THAT(refused(R"([["a"]])"), HasSubstr("rules.json:1:2: a rule is [pattern"));
  EXPECT_THAT(refused(R"([["a(", ""]])"), HasSubstr("rules.json:1:3: 'a(' is not a valid regular"));
  EXPECT_THAT(refused(R"([["a", "\\1"]])"), HasSubstr("'\\1' names group 1, the pattern has 0"));
  EXPECT_THAT(refused(R"([["a", "\\x"]])"), HasSubstr("a '\\' in a replacement"));
  EXPECT_THAT(refused(R"([["a", "b", "vitzoom"]])"), HasSubstr("did you mean 'vit_zoom'?"));
  EXPECT_THAT(refused(R"([["a", "b", "expand_tile"]])"), HasSubstr("a rule is"));
  EXPECT_THAT(refused(R"([["a", "b", "reshape", 1]])"), HasSubstr("a rule is"));
  EXPECT_THAT(refused(R"([["a", "b", "expand_tile", 0, 0]])"), HasSubstr("between 1 and"));
  EXPECT_THAT(refused(R"({"a": 1})"), HasSubstr("must be a list"));
  EXPECT_THAT(refused("[[\"" + std::string(2000, '(') + "\", \"\"]]"), HasSubstr("at most 1000"));
}

}  // namespace
}  // namespace moesaic::testing
