// SPDX-License-Identifier: Apache-2.0
// What a document costs: time and memory that grow with its length, up to limits.

#include <string>

#include "base/support.h"
#include "base/work.h"
#include "moesaic/base/error.h"
#include "moesaic/config/difference.h"
#include "moesaic/config/document.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

/// An object of `count` keys of one length, which a search in a list would have to compare.
std::string object_of(int count, int first = 0) {
  std::string text = "{";
  for (int i = first; i < first + count; ++i) {
    text += fmt::format("{}\"{:06}\": {}", i == first ? "" : ", ", i, i);
  }
  return text + "}";
}

/// Checks that twice the members cost about twice the comparisons, and no more than sorting does.
template <class Use>
void expect_linear(const Use& use) {
  const auto comparisons = [&](int count) {
    const test::Work work;
    use(count);
    return work.comparisons();
  };
  const int64_t once = comparisons(5000), twice = comparisons(10000);
  EXPECT_LT(twice, 5 * once / 2);
  EXPECT_LT(twice, 10000 * 200);
}

TEST(JsonReader, ReadsManyKeysInTimeThatGrowsWithThem) {
  expect_linear([](int count) { parse_stored(object_of(count), "a"); });
}

TEST(JsonReader, WritesManyKeysInTimeThatGrowsWithThem) {
  expect_linear([](int count) { parse_stored(object_of(count), "a").to_json(); });
}

TEST(JsonReader, FindsKeysInTimeThatGrowsWithThem) {
  expect_linear([](int count) {
    const Value object = parse_stored(object_of(count), "a");
    for (int i = 0; i < count; ++i) ASSERT_NE(object.find(fmt::format("{:06}", i)), nullptr);
  });
}

TEST(JsonReader, MergesAndComparesInTimeThatGrowsWithTheKeys) {
  expect_linear([](int count) {
    const Value first = parse_stored(object_of(count), "a");
    const Value second = parse_stored(object_of(count, count / 2), "b");
    EXPECT_EQ(first.merged(second).members().size(), static_cast<size_t>(count + count / 2));
    EXPECT_FALSE(first == second);
    EXPECT_TRUE(first == parse_stored(object_of(count), "c"));
  });
}

TEST(JsonReader, FindsDifferencesInTimeThatGrowsWithTheKeys) {
  expect_linear([](int count) {
    const auto first = parse_stored(object_of(count), "a").to_json();
    const auto second = parse_stored(object_of(count, count / 2), "b").to_json();
    EXPECT_EQ(differences(first, second).size(), static_cast<size_t>(count / 2 * 2));
  });
}

TEST(JsonReader, TakesMemoryInProportion) {
  constexpr int64_t kAllowed = 4 * int64_t{kMaxDocumentBytes} + (int64_t{64} << 20);
  const auto list_of = [](const std::string& item) {
    std::string text = "[" + item;
    while (text.size() + item.size() + 2 <= kMaxDocumentBytes) text += "," + item;
    return text + "]";
  };
  for (const std::string& text :
       {list_of("0"), list_of("1.5"), list_of("\"\""), list_of("[]"), list_of("{}"), list_of("[0]"),
        list_of("{\"a\":0}"), list_of("{\"a\":{}}"), object_of(60000),
        "\"" + std::string(kMaxDocumentBytes - 2, 'x') + "\""}) {
    const test::Work work;
    parse_stored(text, "a").to_json();
    EXPECT_LT(work.peak_bytes(), kAllowed) << text.substr(0, 20);
  }
}

TEST(JsonReader, CountsBytesAndValues) {
  const std::string blank(kMaxDocumentBytes, ' ');
  EXPECT_EQ(parse_stored(blank.substr(1) + "1", "a").as_int(), 1);
  EXPECT_EQ(test::failure_of([&] { parse_stored(blank + "1", "a.json"); }),
            "a.json: 1048577 bytes are more than a JSON document has (at most 1048576)");
  EXPECT_EQ(parse_stored(blank + "1", "a", kMaxListBytes).as_int(), 1);
  std::string numbers = "[0";
  for (int64_t i = 2; i < kMaxDocumentNodes; ++i) numbers += ",0";
  EXPECT_EQ(parse_stored(numbers + "]", "a", kMaxListBytes).items().size(), 999'999U);
  EXPECT_THAT(test::failure_of([&] { parse_stored(numbers + ",0]", "a", kMaxListBytes); }),
              HasSubstr("more than 1000000 values in one document"));
}

TEST(JsonReader, CallsWhatNoUserWroteAFailure) {
  EXPECT_THAT(test::failure_of([] { parse_stored("{\"a\": }", "state.json"); }),
              StartsWith("state.json:1:7: syntax error"));
  EXPECT_THAT(test::failure_of([] { parse_stored(std::string(1000000, '['), "a"); }),
              StartsWith("a:1:201: lists and objects nest deeper than 200"));
  EXPECT_EQ(find_json("{\"a\": }"), std::nullopt);
  EXPECT_EQ(find_json("{\"a\": [1]}")->dump(), "{\"a\":[1]}");
}

TEST(JsonReader, CountsWhatADocumentExtendsWithIt) {
  const test::TempDir folder;
  test::put(folder / "large.json", "{\"a\": \"" + std::string(600'000, 'x') + "\"}");
  test::put(folder / "twice.json",
            R"({"x": {"extends": "large.json"}, "y": {"extends": "large.json"}})");
  EXPECT_EQ(test::usage_of([&] { Document::from_file(folder / "twice.json"); }),
            (folder / "twice.json").string() +
                ": the configuration and what it extends have more than 1048576 bytes");
  std::string numbers = "{\"a\": [0";
  for (int i = 0; i < 400'000; ++i) numbers += ",0";
  test::put(folder / "large.json", numbers + "]}");
  test::put(folder / "thrice.json", R"({"x": {"extends": "large.json"},
      "y": {"extends": "large.json"}, "z": {"extends": "large.json"}})");
  EXPECT_THAT(test::usage_of([&] { Document::from_file(folder / "thrice.json", kMaxListBytes); }),
              HasSubstr("more than 1000000 values in one configuration"));
}

}  // namespace
}  // namespace moesaic
