// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/rules.h"

#include "base/support.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace {

struct Lengths {
  std::optional<int64_t> epochs, steps;
};
template <class Fields>
void describe(Fields& f, Lengths& c) {
  f("epochs", c.epochs, "length in epochs");
  f("steps", c.steps, "length in steps");
}
ConfigProblem config_problem(const Lengths& lengths) {
  if (lengths.epochs && lengths.steps)
    return mutually_exclusive({"epochs", "null"}, {"steps", "null"});
  return {};
}

TEST(MutuallyExclusive, SaysHowToTurnOffTheSettingThatNoArgumentGave) {
  const auto message = [](const std::vector<std::string>& arguments) {
    Document document = Document::from_text(R"({"epochs": 2, "steps": 3})", "recipe.json");
    for (const std::string& argument : arguments) document.set(argument);
    return test::usage_of([&] { parse<Lengths>(document.root(), "phases.0"); });
  };
  EXPECT_EQ(
      message({}),
      "recipe.json:1:24: 'epochs' and 'steps' exclude one another (phases.0.steps); leave one out");
  EXPECT_EQ(message({"steps=4"}),
            "argument 'steps=4': 'epochs' and 'steps' exclude one another (phases.0.steps); give "
            "phases.0.epochs=null too");
}

Document recipe() {
  return Document::from_text(
      "{\n \"a\": 1,\n \"b\": {\"x.y\": 2,\n  \"list\": [3,\n   {\"c\": 4}]}}", "recipe.json");
}

TEST(LocationOf, FindsAValueOrItsKey) {
  const Value root = recipe().root();
  EXPECT_EQ(location_of(root, {"a"}), "recipe.json:2:7");
  EXPECT_EQ(location_of(root, {"a:"}), "recipe.json:2:2");
  EXPECT_EQ(location_of(root, {"b.x.y"}), "recipe.json:3:15");
  EXPECT_EQ(location_of(root, {"b.x.y:"}), "recipe.json:3:8");
  EXPECT_EQ(location_of(root, {"b.list.0"}), "recipe.json:4:12");
  EXPECT_EQ(location_of(root, {"b.list.1.c"}), "recipe.json:5:10");
}

TEST(LocationOf, TakesTheFirstThatExistsOrElseTheStruct) {
  const Value root = recipe().root();
  EXPECT_EQ(location_of(root, {"none", "b.list.9", "a"}), "recipe.json:2:7");
  EXPECT_EQ(location_of(root, {"none"}), "recipe.json:1:1");
  EXPECT_EQ(location_of(Value(), {"none"}), "config");
}

TEST(LocationOf, PointsAtTheCommandLine) {
  Document document = recipe();
  document.set("b.list.0=7");
  EXPECT_EQ(location_of(document.root(), {"a", "b.list.0"}), "argument 'b.list.0=7'");
}

TEST(ArgumentsIn, NamesThoseThatStillHaveAValue) {
  Document document = recipe();
  EXPECT_TRUE(arguments_in(document.root()).empty());
  document.set("b.list.0=7");
  document.set("new.deep=[1, {\"d\": 2}]");
  document.set("a=5");
  document.set("a=6");
  EXPECT_EQ(arguments_in(document.root()),
            (std::set<std::string>{"argument 'b.list.0=7'", "argument 'new.deep=[1, {\"d\": 2}]'",
                                   "argument 'a=6'"}));
}

}  // namespace
}  // namespace moesaic
