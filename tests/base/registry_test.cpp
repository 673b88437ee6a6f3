// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/registry.h"

#include "base/support.h"

namespace moesaic {
namespace {

struct Described {
  std::string description;
};

TEST(Registry, EntriesThatHaveAMeaningSayIt) {
  Registry<Described> registry("thing", {{"one", {"the first of all"}}});
  registry.add("two", {"the one after it"});
  EXPECT_EQ(test::usage_of([&] { registry.add("three", {}); }),
            "thing 'three' has no description; give one line");
  EXPECT_EQ(registry.names(), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(test::usage_of([] {
              Registry<Described>("thing", {{"one", {""}}});
            }),
            "thing 'one' has no description; give one line");
}

TEST(Registry, EntriesWithoutAMeaningNeedNone) {
  Registry<int> registry("number", {{"one", 1}});
  registry.add("two", 2);
  EXPECT_EQ(registry.at("two"), 2);
  EXPECT_EQ(test::usage_of([&] { registry.at("tow"); }),
            "unknown number 'tow'; did you mean 'two'?");
  EXPECT_EQ(test::usage_of([&] { registry.add("two", 3); }), "number 'two' is already registered");
}

}  // namespace
}  // namespace moesaic
