// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/suggestions.h"
#include "support/matchers.h"

#include <vector>

namespace moesaic {
namespace {

const std::vector<std::string> kKeys = {"name", "lr", "momentum", "weight_decay",
                                        "router-magnitude"};

TEST(EditDistance, CountsEachKindOfSlip) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("abc", "abxc"), 1u);  // insertion
  EXPECT_EQ(edit_distance("abc", "ac"), 1u);    // deletion
  EXPECT_EQ(edit_distance("abc", "axc"), 1u);   // substitution
  EXPECT_EQ(edit_distance("abc", "bac"), 1u);   // neighbours swapped
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("ABC", "abc"), 0u);
}

TEST(Nearest, FindsMisspeltNames) {
  EXPECT_EQ(nearest("momemtum", kKeys), "momentum");
  EXPECT_EQ(nearest("weightdecay", kKeys), "weight_decay");
  EXPECT_EQ(nearest("nmae", kKeys), "name");
  EXPECT_EQ(nearest("Router_Magnitude", kKeys), "router-magnitude");
  EXPECT_EQ(nearest("rl", kKeys), "lr");
}

TEST(Nearest, FindsAbbreviationsAndBeginnings) {
  EXPECT_EQ(nearest("learning_rate", kKeys), "lr");
  EXPECT_EQ(nearest("weight", kKeys), "weight_decay");
  EXPECT_EQ(nearest("wieght", kKeys), "weight_decay");
  EXPECT_EQ(nearest("routr", kKeys), "router-magnitude");
  EXPECT_EQ(nearest("wd", kKeys), "weight_decay");
}

TEST(Nearest, PrefersTheCloserOneAndTheFirstOfEquals) {
  const std::vector<std::string> names = {"train_image", "train_images", "train_imagesx"};
  EXPECT_EQ(nearest("train_images", names), "train_images");
  const std::vector<std::string> equal = {"block1", "block2"};
  EXPECT_EQ(nearest("block3", equal), "block1");
}

TEST(Nearest, PassesOverNamesThatAreTooLong) {
  const std::string name(1'000'000, 'x');
  const std::vector<std::string> candidates = {name + "y"};
  EXPECT_EQ(nearest(name, candidates), name + "y") << "as its beginning, without a distance";
  const std::vector<std::string> others = {"y" + name};
  EXPECT_EQ(nearest(name, others), std::nullopt);
}

TEST(Nearest, GivesNothingWhenNothingIsClose) {
  EXPECT_EQ(nearest("zebra", kKeys), std::nullopt);
  EXPECT_EQ(nearest("", kKeys), std::nullopt);
  EXPECT_EQ(nearest("x", std::vector<std::string>{"y"}), std::nullopt);
  EXPECT_EQ(nearest("name", {}), std::nullopt);
}

TEST(DidYouMean, SuggestsOrLists) {
  EXPECT_EQ(did_you_mean("momentun", kKeys), "did you mean 'momentum'?");
  EXPECT_EQ(did_you_mean("zebra", std::vector<std::string>{"sgd", "adamw"}),
            "choose one of sgd, adamw");
  EXPECT_EQ(did_you_mean("zebra", std::vector<std::string>{"cnn, l = 2", "joint"}),
            "choose one of 'cnn, l = 2', joint");
  EXPECT_EQ(did_you_mean("zebra", {}), "");
}

TEST(DidYouMean, ListsANameOnce) {
  EXPECT_EQ(did_you_mean("zebra", std::vector<std::string>{"sgd", "adamw", "sgd"}),
            "choose one of sgd, adamw");
}

TEST(DidYouMean, KeepsALongListShort) {
  std::vector<std::string> many;
  for (int i = 0; i < 1000; ++i) many.push_back("candidate" + std::to_string(i));
  const std::string line = did_you_mean("q", many);
  EXPECT_LT(line.size(), 500u);
  EXPECT_THAT(line, HasSubstr("(1000 in all)"));
}

TEST(Nearest, FindsANameBehindASlash) {
  const std::vector<std::string> names = {"tables", "clusters/table10", "clusters/table1"};
  EXPECT_EQ(nearest("table1", names), "clusters/table1");
}

TEST(Nearest, FindsAMisspeltNameBehindASlash) {
  const std::vector<std::string> names = {"tables", "clusters/table10", "clusters/table1",
                                          "vmoe/s32-last2"};
  EXPECT_EQ(nearest("tabel1", names), "clusters/table1");
  EXPECT_EQ(nearest("tabels", names), "tables");
  EXPECT_EQ(nearest("s32", names), "vmoe/s32-last2") << "its beginning";
  EXPECT_EQ(nearest("cluster/tabel1", names), "clusters/table1");
  EXPECT_EQ(nearest("other/tabel1", names), std::nullopt) << "a folder that is given counts";
}

TEST(NearestDivisor, IsTheSmallerOfTwo) {
  EXPECT_EQ(nearest_divisor(12, 5), 4);
  EXPECT_EQ(nearest_divisor(7, 5), 7);
  EXPECT_EQ(nearest_divisor(5, 100), 5);
}

TEST(Nearest, AQuestionBecomesAStatementWhereTheLineGoesOn) {
  EXPECT_EQ(as_statement("did you mean 'momentum'?"), "the nearest is 'momentum'");
  EXPECT_EQ(as_statement("; did you mean 'a' (b, not c)?"), "; the nearest is 'a' (b, not c)");
  EXPECT_EQ(as_statement("choose one of a, b"), "choose one of a, b");
  EXPECT_EQ(as_statement(""), "");
}

}  // namespace
}  // namespace moesaic
