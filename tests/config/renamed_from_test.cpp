// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/support.h"
#include "moesaic/base/file.h"
#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"
#include "support/matchers.h"
#include "support/warnings.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;
using testing::Warnings;

struct LinearConfig {
  int64_t width = 1;
};
template <class Fields>
void describe(Fields& f, LinearConfig& c) {
  f("width", c.width, "width of the layer", at_least(1), renamed_from("size"));
}
std::string config_problem(const LinearConfig& c) {
  return c.width == 13 ? "thirteen is unlucky" : "";
}

struct IdentityConfig {};
template <class Fields>
void describe(Fields&, IdentityConfig&) {}

struct ShardConfig {
  int64_t num_images = 0;
};
template <class Fields>
void describe(Fields& f, ShardConfig& c) {
  f("num_images", c.num_images, "number of images", renamed_from("images"), renamed_from("count"));
}

struct NetworkConfig {
  NamedSettings layer;
  std::vector<LinearConfig> heads;
  int64_t num_classes = 2;
  Value source;
};
template <class Fields>
void describe(Fields& f, NetworkConfig& c) {
  f("num_classes", c.num_classes, "number of classes", common, renamed_from("classes"));
  f("heads", c.heads, "output layers");
  f.choice("layer", c.layer,
           {NamedSettings("identity", IdentityConfig()), NamedSettings("linear", LinearConfig())},
           "kind of the layer", renamed_from("kind"));
}
ConfigProblem config_problem(const NetworkConfig& c) {
  if (c.num_classes != 7) return {};
  return {"seven classes are too many", {"num_classes"}};
}

std::string read(const Value& value) {
  return to_json(parse<NetworkConfig>(value, "model")).dump();
}

TEST(RenamedFrom, ReadsTheFormerKeyWithAWarning) {
  using Texts = std::vector<std::string>;
  // Each place is warned of once, so each case has a file of its own.
  const auto check = [](const std::string& file, const std::string& text, const Texts& arguments,
                        const std::string& settings, const Texts& wanted) {
    SCOPED_TRACE(file);
    Document document = Document::from_text(text, file);
    for (const std::string& argument : arguments) document.set(argument);
    const Warnings warnings;
    EXPECT_EQ(read(document.root()), settings);
    EXPECT_EQ(read(document.root()), settings) << "the second time, without a warning";
    EXPECT_THAT(warnings.texts(), ::testing::UnorderedElementsAreArray(wanted));
  };
  const auto warning = [](const std::string& place, const std::string& former,
                          const std::string& present) {
    return place + ": 'model." + former + "' is called 'model." + present +
           "' now; the former name is still read";
  };
  const auto with_classes = [](int count) {
    return fmt::format(R"({{"num_classes":{},"heads":[],"layer":"identity"}})", count);
  };
  check("present", R"({"num_classes": 5})", {}, with_classes(5), {});
  check("former", R"({"classes": 5})", {}, with_classes(5),
        {warning("former:1:2", "classes", "num_classes")});
  check("list", "{\"heads\": [{\"width\": 3},\n  {\"size\": 4}]}", {},
        R"({"num_classes":2,"heads":[{"width":3},{"width":4}],"layer":"identity"})",
        {warning("list:2:4", "heads.1.size", "heads.1.width")});
  check("choice", R"({"kind": "linear", "size": 6})", {},
        R"({"num_classes":2,"heads":[],"layer":"linear","width":6})",
        {warning("choice:1:20", "size", "width"), warning("choice:1:2", "kind", "layer")});
  check("argument", "{}", {"classes=4"}, with_classes(4),
        {warning("argument 'classes=4'", "classes", "num_classes")});
  check("argument-before-file", R"({"num_classes": 5})", {"classes=3"}, with_classes(3),
        {warning("argument 'classes=3'", "classes", "num_classes")});
  check("argument-over-former", R"({"classes": 5})", {"num_classes=3"}, with_classes(3),
        {warning("argument-over-former:1:2", "classes", "num_classes")});
}

TEST(RenamedFrom, RefusesBothKeysOfOneSetting) {
  const Warnings warnings;
  const Value both = Document::from_text(R"({"num_classes": 2, "classes": 2})", "both.json").root();
  EXPECT_EQ(test::usage_of([&] { parse<NetworkConfig>(both, "model"); }),
            "both.json:1:20: 'model.classes' is the former name of 'model.num_classes', which is "
            "given too (both.json:1:2); leave it out");
  EXPECT_THAT(warnings.texts(), ElementsAre());
}

TEST(RenamedFrom, OfAFileThatExtendsAnotherWins) {
  const Warnings warnings;
  const test::TempDir folder;
  const auto classes = [&](const std::string& extended, const std::string& own) {
    write_atomic(folder.path() / "extended.json", "{" + extended + "}");
    write_atomic(folder.path() / "own.json", R"({"extends": "extended.json", )" + own + "}");
    const Value value = Document::from_file(folder.path() / "own.json").root();
    return parse<NetworkConfig>(value, "model").num_classes;
  };
  EXPECT_EQ(classes(R"("num_classes": 3)", R"("classes": 4)"), 4);
  EXPECT_EQ(classes(R"("classes": 3)", R"("num_classes": 4)"), 4);
  EXPECT_THAT(warnings.texts(), ::testing::SizeIs(2));
  const auto read_text_of = [](const char* text, const char* name) {
    return Document::from_text(text, name).root();
  };
  const Value base = read_text_of(R"({"num_classes": 3})", "base.json");
  EXPECT_EQ(read(base.merged(read_text_of(R"({"classes": 4})", "set.json"))),
            R"({"num_classes":4,"heads":[],"layer":"identity"})");
}

TEST(RenamedFrom, ReadsEachOfSeveralFormerKeys) {
  const auto number = [](const char* text) {
    return parse<ShardConfig>(Document::from_text(text, text).root()).num_images;
  };
  const Warnings warnings;
  EXPECT_EQ(number(R"({"images": 3})"), 3);
  EXPECT_EQ(number(R"({"count": 4})"), 4);
  EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("'images' is called 'num_images'"),
                                            HasSubstr("'count' is called 'num_images'")));
  EXPECT_THAT(test::usage_of([&] { number(R"({"images": 3, "count": 3})"); }),
              HasSubstr("leave it out"));
  EXPECT_EQ(help_rows_at(help_rows<ShardConfig>(), "count").at(0).key, "num_images");
}

TEST(RenamedFrom, WarnsOnceOfAKeyOfAllItemsOfAList) {
  const Warnings warnings;
  const Value value =
      Document::from_text(R"([{"images": 1}, {"images": 2}, {"images": 3}])", "shards.json").root();
  std::vector<ShardConfig> shards;
  config_detail::read(value, "train", Rules{}, shards);
  EXPECT_EQ(shards.at(2).num_images, 3);
  EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("shards.json:1:3: 'train.0.images'")));
}

TEST(RenamedFrom, IsSilentForWhatAProgramWrote) {
  const Warnings warnings;
  constexpr const char* kText = R"({"classes": 5, "layer": "linear", "size": 6})";
  constexpr const char* kRead = R"({"num_classes":5,"heads":[],"layer":"linear","width":6})";
  EXPECT_EQ(read(parse_stored(kText, "config.json")), kRead);
  EXPECT_EQ(read(Value::from_json(nlohmann::ordered_json::parse(kText), "config.json")), kRead);
  EXPECT_THAT(warnings.texts(), ElementsAre());
}

TEST(RenamedFrom, ErrorsNameThePresentKeyAtThePlaceOfTheFormerOne) {
  const Warnings warnings;
  const auto error = [](const std::string& text) {
    const Value value = Document::from_text(text, "wrong.json").root();
    return test::usage_of([&] { parse<NetworkConfig>(value, "model"); });
  };
  EXPECT_EQ(error(R"({"classes": "two"})").substr(0, 15), "wrong.json:1:13");
  EXPECT_THAT(error(R"({"classes": "two"})"), HasSubstr("'model.num_classes' must be"));
  EXPECT_THAT(error(R"({"classes": 7})"), HasSubstr("wrong.json:1:13: seven classes are too many"));
  EXPECT_THAT(error(R"({"layer": "linear", "size": 0})"),
              HasSubstr("'model.width' must be at least 1"));
  EXPECT_THAT(error(R"({"heads": [{"size": 13}]})"), HasSubstr("thirteen is unlucky"));
  EXPECT_THAT(error(R"({"num_clases": 2})"), HasSubstr("did you mean 'num_classes'?"));
}

TEST(RenamedFrom, HelpKnowsBothNamesAndShowsThePresentOne) {
  const HelpRows rows = help_rows<NetworkConfig>("model");
  EXPECT_THAT(help_text(rows), Not(HasSubstr("model.classes")));
  for (const char* path : {"model.num_classes", "model.classes", "classes"}) {
    const HelpRows found = help_rows_at(rows, path);
    ASSERT_EQ(found.size(), 1U) << path;
    EXPECT_EQ(found[0].key, "model.num_classes") << path;
  }
  EXPECT_EQ(help_rows_at(rows, "model.heads.0.size").at(0).key, "model.heads.N.width");
  const HelpRows called = help_rows_matching(rows, "classes");
  ASSERT_EQ(called.size(), 1U);
  EXPECT_EQ(called[0].key, "model.num_classes");
}

}  // namespace
}  // namespace moesaic
