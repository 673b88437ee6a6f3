// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/plan.h"

#include "base/support.h"
#include "moesaic/config/document.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

KeepSpec from_text(const std::string& json) {
  return KeepSpec::from_value(Document::from_text(json, "keep.json").root());
}

int64_t count_of(const KeepSpec& spec, int64_t block, int64_t experts) {
  const KeepRule* rule = spec.rule_of(block);
  return rule == nullptr ? -1 : rule->count(experts);
}

TEST(KeepSpec, AFractionIsRoundedToTheNearestCountAndIsAtLeastOne) {
  EXPECT_EQ(count_of(KeepSpec::parse("0.25"), 7, 8), 2);
  EXPECT_EQ(count_of(KeepSpec::parse("0.25"), 7, 6), 2);
  EXPECT_EQ(count_of(KeepSpec::parse("0.2"), 7, 6), 1);
  EXPECT_EQ(count_of(KeepSpec::parse("0.01"), 7, 8), 1);
  EXPECT_EQ(count_of(KeepSpec::parse("1.0"), 7, 8), 8);
  EXPECT_EQ(count_of(KeepSpec::parse("5e-1"), 7, 32), 16);
}

TEST(KeepSpec, ACountIsTakenAsItIs) {
  EXPECT_EQ(count_of(KeepSpec::parse("4"), 0, 8), 4);
  EXPECT_EQ(count_of(KeepSpec::parse("1"), 0, 8), 1);
}

TEST(KeepSpec, AFileSaysItForEachBlock) {
  const test::TempDir folder;
  test::put(folder / "keep.json", "{\"1\": 3, // comment\n \"3\": [4, 0]}");
  const KeepSpec spec = KeepSpec::parse((folder / "keep.json").string());
  EXPECT_EQ(count_of(spec, 1, 8), 3);
  EXPECT_EQ(count_of(spec, 3, 8), 2);
  ASSERT_NE(spec.rule_of(3)->ids(), nullptr);
  EXPECT_EQ(*spec.rule_of(3)->ids(), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(spec.rule_of(1)->ids(), nullptr);
  EXPECT_EQ(spec.rule_of(2), nullptr);
}

TEST(KeepSpec, AConfigurationMayHoldAnyForm) {
  EXPECT_EQ(count_of(from_text("0.5"), 0, 8), 4);
  EXPECT_EQ(count_of(from_text("3"), 0, 8), 3);
  EXPECT_EQ(count_of(from_text("\"0.5\""), 0, 8), 4);
  EXPECT_EQ(count_of(from_text("{\"2\": 1}"), 2, 8), 1);
}

TEST(KeepSpec, WithoutARuleEverythingStays) {
  EXPECT_EQ(KeepSpec().rule_of(0), nullptr);
}

struct Wrong {
  std::string text, message;
};

class WrongKeep : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongKeep, IsRefusedInOneLine) {
  EXPECT_THAT(test::usage_of([] { KeepSpec::parse(GetParam().text); }),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, WrongKeep,
    ::testing::Values(Wrong{"0", "at least 1 expert must be kept, found 0"},
                      Wrong{"-2", "found -2"}, Wrong{"0.0", "a fraction must be above 0"},
                      Wrong{"1.5", "found 1.5"}, Wrong{"nan", "fraction"}, Wrong{"inf", "fraction"},
                      Wrong{"-0.5", "found -0.5"}, Wrong{"half", "neither a fraction"},
                      Wrong{"", "neither a fraction"}, Wrong{"4 ", "neither a fraction"},
                      Wrong{"no/such.json", "no/such.json"}));

class WrongKeepFile : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongKeepFile, IsRefusedWithItsPlace) {
  EXPECT_THAT(test::usage_of([] { from_text(GetParam().text); }), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Files, WrongKeepFile,
    ::testing::Values(Wrong{"{\n \"1\": 0}", "keep.json:2:7: at least 1 expert"},
                      Wrong{"{\n \"1\": [0,\n 0]}", "keep.json:3:2: expert 0 is named twice"},
                      Wrong{"{\"1\": []}", "keep.json:1:7: at least 1 expert"},
                      Wrong{"{\"1\": [-1]}", "keep.json:1:8: experts are numbered from 0"},
                      Wrong{"{\"one\": 2}", "keep.json:1:2: unknown key 'one' in keep"},
                      Wrong{"{\"-1\": 2}", "keep.json:1:2: '-1' is not the number of a block"},
                      Wrong{"{\"1\": 2, \"01\": 3}", "keep.json:1:10: block 1 is named twice"},
                      Wrong{"{\"1\": 0.5}", "keep.json:1:7: '1' must be"},
                      Wrong{"{\"1\": [true]}", "keep.json:1:8: '1' must be"},
                      Wrong{"true", "keep.json:1:1: 'keep' must be"},
                      Wrong{"{\"fraction\": 0.5, \"count\": 2}", "one of fraction, count"},
                      Wrong{"{}", "one of fraction, count and parameters, found 0"},
                      Wrong{"{\"exclude_blocks\": [1]}",
                            "one of fraction, count and parameters, found 0"},
                      Wrong{"{\"count\": 2, \"scope\": \"all\"}", "choose one of layer, network"},
                      Wrong{"{\"parameters\": 1.5}", "keep.json:1:16"},
                      Wrong{"2.5", "keep.json:1:1: a fraction"}));

TEST(KeepSpec, NamesABlockWithoutExperts) {
  EXPECT_THAT(test::usage_of([] {
                from_text("{\"1\": 2,\n\"2\": 2}").check_blocks({1, 3});
              }),
              HasSubstr("keep.json:2:6: block 2 has no experts; choose among the blocks 1, 3"));
  from_text("{\"1\": 2}").check_blocks({1, 3});
  KeepSpec::count(2).check_blocks({1, 3});
}

TEST(KeepSpec, SaysWhereAConfigurationHoldsNone) {
  EXPECT_THAT(test::usage_of([] { from_text("\n \"half\""); }),
              HasSubstr("keep.json:2:2: keep 'half': neither a fraction"));
  EXPECT_THAT(test::usage_of([] { from_text("true"); }),
              HasSubstr("'keep' must be a fraction (0.25), a count (4), a file, or an object"));
}

TEST(KeepSpec, OtherNotationsOfNumbersAreUnderstoodInTheMessage) {
  for (const auto& [text, meant] :
       std::map<std::string, std::string>{{"0x2", "2"}, {"50%", "0.5"}, {"0,25", "0.25"}}) {
    EXPECT_THAT(test::usage_of([&, &given = text] { KeepSpec::parse(given); }),
                ::testing::EndsWith("; did you mean '" + meant + "'?"));
  }
}

TEST(KeepSpec, OfSettingsHasScopeAndExcludedBlocks) {
  const KeepSpec spec =
      from_text("{\"fraction\": 0.5, \"scope\": \"network\", \"exclude_blocks\": [3]}");
  EXPECT_EQ(spec.scope(), KeepScope::network);
  EXPECT_EQ(spec.rule_of(3), nullptr);
  EXPECT_EQ(spec.rule_of(1)->count(6), 3);
  EXPECT_EQ(spec.rule_of_network()->count(12), 6);
  EXPECT_TRUE(spec.chooses_among_layers());
  EXPECT_FALSE(KeepSpec::count(2).chooses_among_layers());
  EXPECT_TRUE(from_text("{\"parameters\": 0.5}").chooses_among_layers());
  EXPECT_THAT(test::usage_of([&] {
                spec.check_blocks({1, 5});
              }),
              HasSubstr("block 3 in 'exclude_blocks' has no experts"));
  EXPECT_THAT(test::usage_of([&] { spec.check_blocks({3}); }), HasSubstr("names every block"));
  KeepSpec blocks = from_text("{\"1\": 2}");
  EXPECT_THAT(test::usage_of([&] { blocks.set_scope(KeepScope::network); }),
              HasSubstr("not for rules of blocks"));
  EXPECT_THAT(test::usage_of([&] { blocks.exclude_blocks({1}); }), HasSubstr("leave block 1 out"));
}

}  // namespace
}  // namespace moesaic
