// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/difference.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moesaic/config/value.h"

namespace moesaic {
namespace {

std::vector<std::string> paths_of(const char* before, const char* after,
                                  const DifferenceOptions& form = {}) {
  std::vector<std::string> paths;
  for (const Difference& difference : differences(Json::parse(before), Json::parse(after), form)) {
    paths.push_back(difference.path);
  }
  return paths;
}

TEST(Differences, AreNamedByTheirPaths) {
  using Paths = std::vector<std::string>;
  const char *before = R"({"a": 1, "b": {"c": [1, 2, 3], "d": true}, "e": null})",
             *after = R"({"b": {"d": true, "c": [1, 5]}, "a": 1, "f": 7})";
  EXPECT_EQ(paths_of(before, before), Paths());
  EXPECT_EQ(paths_of(before, after), Paths({"b.c.1", "b.c.2", "f"}));
  EXPECT_EQ(paths_of(before, after, {.separator = '/', .compares_whole_lists = true}),
            Paths({"b/c", "f"}));
  EXPECT_EQ(paths_of("1", "2"), Paths({""}));
}

TEST(Differences, AreDescribedInOneLine) {
  const auto found = differences(Json::parse(R"({"a": 1, "b": "x"})"), Json::parse(R"({"a": 2})"));
  EXPECT_EQ(describe(found), "'a' was 1 and is 2 now, 'b' was \"x\" and is absent now");
  EXPECT_EQ(describe(found, /*is_side_by_side=*/true), "'a' is 2, not 1, 'b' is absent, not \"x\"");
  const std::string many = describe(
      differences(Json::parse("[1, 2, 3, 4, 5, 6, 7]"), Json::parse("[0, 0, 0, 0, 0, 0, 0]")));
  EXPECT_TRUE(many.ends_with("'4' was 5 and is 0 now, and 2 more")) << many;
}

}  // namespace
}  // namespace moesaic
