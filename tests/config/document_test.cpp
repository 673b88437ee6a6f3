// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/document.h"

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include "base/support.h"
#include "moesaic/base/error.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using test::usage_of;
using Json = nlohmann::ordered_json;

Value read(std::string_view text) {
  return Document::from_text(text, "a.json").root();
}

std::string read_error(std::string_view text) {
  return usage_of([&] { read(text); });
}

std::string set_error(std::string_view text, std::string_view assignment) {
  Document document = Document::from_text(text, "a.json");
  return usage_of([&] { document.set(assignment); });
}

Json after(std::string_view text, std::string_view assignment) {
  Document document = Document::from_text(text, "a.json");
  document.set(assignment);
  return document.root().to_json();
}

TEST(Document, ReadsEveryKind) {
  const Value root =
      read(R"({"n": null, "b": true, "i": -3, "x": 2.5, "s": "\u00e4\n", "l": [1, []]})");
  EXPECT_TRUE(root.at("n").is_null());
  EXPECT_TRUE(root.at("b").as_bool());
  EXPECT_EQ(root.at("i").as_int(), -3);
  EXPECT_EQ(root.at("i").as_double(), -3.0);
  EXPECT_EQ(root.at("x").as_double(), 2.5);
  EXPECT_EQ(root.at("s").as_string(), "\xC3\xA4\n");
  EXPECT_EQ(root.at("l").items().size(), 2u);
  EXPECT_EQ(root.find("z"), nullptr);
  EXPECT_EQ(root.depth(), 3);
  EXPECT_EQ(root.to_json().dump(),
            "{\"n\":null,\"b\":true,\"i\":-3,\"x\":2.5,\"s\":\"\xC3\xA4\\n\",\"l\":[1,[]]}");
}

TEST(Document, KnowsWhereEverythingIs) {
  const Value root = read(
      "// a comment, with \"quotes\" and {\n"
      "{ /* two\n"
      "  lines */ \"a\" : [1,\n"
      "\t-2.5e1 , true],\"\xC3\xA4\xE2\x82\xAC\": \"x\\\"y\", \"c\": {\"d\": null } }");
  EXPECT_EQ(root.where(), "a.json:2:1");
  EXPECT_EQ(root.members()[0].origin.text(), "a.json:3:12");
  EXPECT_EQ(root.at("a").where(), "a.json:3:18");
  EXPECT_EQ(root.at("a").items()[0].where(), "a.json:3:19");
  EXPECT_EQ(root.at("a").items()[1].where(), "a.json:4:2");
  EXPECT_EQ(root.at("a").items()[2].where(), "a.json:4:11");
  EXPECT_EQ(root.members()[1].origin.text(), "a.json:4:17");
  EXPECT_EQ(root.members()[1].value.where(), "a.json:4:23") << "columns count characters";
  EXPECT_EQ(root.members()[2].origin.text(), "a.json:4:31");
  EXPECT_EQ(root.at("c").at("d").where(), "a.json:4:42");
}

TEST(Document, ACommentEndsAtAnyEndOfALine) {
  const Value root = read("//\r// two\r\n[1, 2]");
  EXPECT_EQ(root.items().size(), 2u);
  EXPECT_EQ(root.items()[1].where(), "a.json:2:5");
  EXPECT_THROW(read("//\r\r2\vc\n\"c"), Error);  // Its place was looked for without end.
}

TEST(Document, ACommaBeforeAnEndIsToBeLeftOut) {
  for (const char* text : {"{\"a\": 1,}", "{\"a\": [1, 2 ,\n ]}"}) {
    EXPECT_THAT(read_error(text), HasSubstr("; leave out the comma before it"));
  }
  for (const char* text : {"{\"a\": }", "[1 2]", "[,]", "}", "[\"a,]"}) {
    EXPECT_THAT(read_error(text), Not(HasSubstr("leave out"))) << text;
  }
}

TEST(Document, ComesFromARegularFileOfAMegabyte) {
  const test::TempDir folder;
  const auto failure = [](const std::filesystem::path& path) {
    return test::failure_of([&] { Document::from_file(path); });
  };
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(failure(folder / "pipe"), HasSubstr("pipe: not a regular file"));
  EXPECT_THAT(failure("/dev/zero"), HasSubstr("not a regular file"));
  test::put(folder / "large.json", "{}");
  std::filesystem::resize_file(folder / "large.json", kMaxDocumentBytes + 1);
  EXPECT_THAT(failure(folder / "large.json"),
              HasSubstr("large.json: 1048577 bytes are more than a configuration has"));
}

TEST(Document, OneWithoutATextIsCalledEmpty) {
  for (const char* text : {"", " \r\n\t\n", "\xEF\xBB\xBF\n"}) {
    EXPECT_EQ(read_error(text), "a.json: the text is empty, expected JSON");
  }
}

TEST(Document, ByteOrderMarkIsNotCounted) {
  EXPECT_EQ(read("\xEF\xBB\xBF{\"a\": 1}").at("a").where(), "a.json:1:7");
  EXPECT_THAT(read_error("\xEF\xBB\xBF{\"a\" 1}"), StartsWith("a.json:1:6: "));
}

TEST(Document, SyntaxErrorsSayWhereTheBadTokenBegins) {
  EXPECT_THAT(read_error("{\"a\": 1,\n  \"b\" 2}"), StartsWith("a.json:2:7: syntax error"));
  EXPECT_THAT(read_error("{\"a\": 1,\n}"), StartsWith("a.json:2:1: "));
  EXPECT_THAT(read_error("{\"a\": 1,,}"), StartsWith("a.json:1:9: "));
  EXPECT_THAT(read_error("{\"a\": tru}"), StartsWith("a.json:1:7: "));
  EXPECT_THAT(read_error("[1, \"abc"), StartsWith("a.json:1:5: "));
  EXPECT_THAT(read_error("[1, 2"), StartsWith("a.json:1:6: "));
  EXPECT_THAT(read_error("{} x"), StartsWith("a.json:1:4: "));
  EXPECT_THAT(read_error("{ /* open"), StartsWith("a.json:1:10: "));
  EXPECT_THAT(read_error("{ // open"), StartsWith("a.json:1:10: "));
  EXPECT_THAT(read_error("[1, /x]"), StartsWith("a.json:1:5: "));
  EXPECT_THAT(read_error("[NaN]"), StartsWith("a.json:1:2: "));
  EXPECT_THAT(read_error("[Infinity]"), StartsWith("a.json:1:2: "));
  EXPECT_THAT(read_error("[1e999]"), StartsWith("a.json:1:2: number overflow"));
  EXPECT_THAT(read_error("['a']"), StartsWith("a.json:1:2: "));
}

TEST(Document, SyntaxErrorsShowNoneOfTheParsersInsides) {
  const std::string message = read_error("{\"a\": tru}");
  EXPECT_THAT(message, Not(HasSubstr("json.exception")));
  EXPECT_THAT(message, Not(HasSubstr("last read")));
  EXPECT_THAT(read_error("{\"a\": 1 \"b\": 2}"), HasSubstr("; expected '}'"));
}

TEST(Document, RefusesDuplicateKeys) {
  EXPECT_EQ(read_error("{\"a\": 1, \"b\": {\"a\": 1,\n \"\\u0061\": 2}}"),
            "a.json:2:2: the key 'a' is given twice");
  EXPECT_EQ(read_error(R"({"a\n": 1, "a\n": 1})"), "a.json:1:12: the key 'a\\n' is given twice")
      << "on one line";
}

TEST(Document, RefusesInvalidUtf8AndNul) {
  EXPECT_EQ(read_error("{\n \"a\": \"\xC3\x28\"}"), "a.json:2:8: invalid UTF-8");
  for (const char* bad : {"\x80", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                          "\xF4\x90\x80\x80", "\xFF", "\xE2\x82", "\xF5\x80\x80\x80"}) {
    EXPECT_THAT(read_error(std::string("{} // ") + bad), HasSubstr("1:7: invalid UTF-8"));
  }
  EXPECT_EQ(read("\"\xF4\x8F\xBF\xBF\xED\x9F\xBF\"").as_string().size(), 7u);
  EXPECT_EQ(read_error(std::string_view("{}\0x", 4)),
            "a.json:1:3: the text holds a NUL byte; remove it");
  EXPECT_THAT(read_error("{\"a\": \"\\ud800\"}"), StartsWith("a.json:1:7: "));
}

TEST(Document, NestingIsBounded) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(read(nested(Value::kMaxDepth)).depth(), Value::kMaxDepth);
  EXPECT_THAT(read_error(nested(Value::kMaxDepth + 1)), StartsWith("a.json:1:201: "));
  EXPECT_THAT(read_error(std::string(1000000, '[')), HasSubstr("nest deeper than 200"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(read_error(objects), HasSubstr("nest deeper than 200"));
}

TEST(Document, IntegersAreExact) {
  EXPECT_EQ(read("1e3").as_int(), 1000);
  EXPECT_EQ(read("-2.0").as_int(), -2);
  EXPECT_EQ(read("9223372036854775807").as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read("-9223372036854775808").as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(usage_of([] { read(" 1.5").as_int("n"); }),
            "a.json:1:2: 'n' must be an integer, found the number 1.5");
  for (const char* big : {"9223372036854775808", "1e300", "-1e19", "9007199254740994.0"}) {
    EXPECT_THAT(usage_of([&] { read(big).as_int("n"); }), HasSubstr("an integer of 64 bits"));
  }
}

TEST(Document, WrongKindsSayWhatWasFound) {
  EXPECT_EQ(usage_of([] { read("\"fast\"").as_double("lr"); }),
            "a.json:1:1: 'lr' must be a number, found the string \"fast\"");
  EXPECT_EQ(usage_of([] { read("1").as_bool("b"); }),
            "a.json:1:1: 'b' must be true or false, found the integer 1");
  EXPECT_EQ(usage_of([] { read("[]").as_string("s"); }),
            "a.json:1:1: 's' must be a string, found a list");
  EXPECT_EQ(usage_of([] { read("null").items("l"); }),
            "a.json:1:1: 'l' must be a list, found null");
  EXPECT_EQ(usage_of([] { read("true").members(); }), "a.json:1:1: must be an object, found true");
  EXPECT_EQ(usage_of([] { read("{}").at("x"); }), "a.json:1:1: missing key 'x'");
  const std::string lines = "\"" + std::string(1000, 'x') + "\\n\"";
  EXPECT_LT(usage_of([&] { read(lines).as_int(); }).size(), 200u);
}

TEST(Document, ReadsFiles) {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "recipe.json";
  test::put(path, "{\n\"a\": }");
  EXPECT_THAT(usage_of([&] { Document::from_file(path); }), StartsWith(path.string() + ":2:6: "));
  test::put(path, "{\"a\": [2]}");
  EXPECT_EQ(Document::from_file(path).root().at("a").where(), path.string() + ":1:7");
  std::filesystem::remove(path);
  EXPECT_THAT(test::failure_of([&] { Document::from_file(path); }), HasSubstr(path.string()));
}

/// Files of a folder that extend one another.
class Extends : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    test::put(folder_ / name, text);
  }
  Value root(const std::string& name) const { return Document::from_file(folder_ / name).root(); }
  /// The place without the folder.
  std::string place(const Value& value) const { return without_folder(value.where()); }
  std::string error(const std::string& name) const {
    return without_folder(usage_of([&] { root(name); }));
  }

 private:
  std::string without_folder(std::string text) const {
    const std::string prefix = folder_.path().string() + "/";
    for (auto at = text.find(prefix); at != std::string::npos; at = text.find(prefix)) {
      text.erase(at, prefix.size());
    }
    return text;
  }
  test::TempDir folder_;
};

TEST_F(Extends, MergesAChainOfFilesAndKeepsEveryPlace) {
  put("base/first.json", R"({"a": {"x": 1, "y": 2}, "list": [1, 2], "b": 3})");
  put("base/second.json", "{\"extends\": \"first.json\",\n \"a\": {\"y\": 4}}");
  put("top.json", "{\"list\": [5],\n \"extends\": \"base/second.json\", \"c\": null}");
  const Value top = root("top.json");
  EXPECT_EQ(top.to_json(),
            Json::parse(R"({"a": {"x": 1, "y": 4}, "list": [5], "b": 3, "c": null})"));
  EXPECT_EQ(place(top), "top.json:1:1");
  EXPECT_EQ(place(top.at("list")), "top.json:1:10");
  EXPECT_EQ(place(top.at("a").at("y")), "base/second.json:2:13");
  EXPECT_EQ(place(top.at("a").at("x")), "base/first.json:1:13");
}

TEST_F(Extends, HoldsForAnyObjectAndOverridesComeAfter) {
  put("phase.json", R"({"name": "train", "steps": 5})");
  put("run.json", R"({"phases": [{"extends": "phase.json", "steps": 7}],
                     "inner": {"train": {"extends": "phase.json", "seed": 3}}})");
  Document document(root("run.json"));
  EXPECT_EQ(document.root().to_json(), Json::parse(R"({"phases": [{"name": "train", "steps": 7}],
                            "inner": {"train": {"name": "train", "steps": 5, "seed": 3}}})"));
  document.set("phases.train.steps=9");
  document.set("inner.train.name=late");
  EXPECT_EQ(document.root().at("phases").items()[0].at("steps").as_int(), 9);
  EXPECT_EQ(document.root().at("inner").at("train").at("name").where(),
            "argument 'inner.train.name=late'");
  EXPECT_EQ(document.root().at("inner").at("train").at("steps").as_int(), 5);
}

TEST_F(Extends, ErrorsNameThePlaceInTheFileThatIsWrong) {
  put("first.json", "{\n \"a\": }");
  put("second.json", R"({"extends": "first.json"})");
  EXPECT_THAT(error("second.json"), StartsWith("first.json:2:7: "));
  put("first.json", R"({"lr": "fast"})");
  EXPECT_THAT(usage_of([&] { root("second.json").at("lr").as_double("lr"); }),
              HasSubstr("first.json:1:8: 'lr' must be a number"));
  EXPECT_THAT(usage_of([&] { root("second.json").at("seed"); }),
              HasSubstr("second.json:1:1: missing key 'seed'"));
}

TEST_F(Extends, AMissingFileIsNamedWithTheNearestOne) {
  put("recipes/setting1.json", "{}");
  put("a.json", "{\n  \"train\": {\"extends\": \"recipes/seting1.json\"}}");
  EXPECT_EQ(error("a.json"),
            "a.json:2:24: extends 'recipes/seting1.json': no such file; did you mean "
            "'recipes/setting1.json'?");
  put("recipes/b.json", R"({"extends": "seting1.json"})");
  EXPECT_THAT(error("recipes/b.json"), HasSubstr("; did you mean 'setting1.json'?"));
  put("recipes/c.json", R"({"extends": "../a.jsn"})");
  EXPECT_THAT(error("recipes/c.json"), HasSubstr("; did you mean '../a.json'?"));
}

TEST_F(Extends, CirclesAndWhatIsNoObjectAreRefused) {
  put("a.json", R"({"extends": "b.json"})");
  put("b.json", R"({"x": {"extends": "./a.json"}})");
  EXPECT_EQ(error("a.json"), "b.json:1:19: 'extends' is circular: a.json -> b.json -> a.json");
  put("self.json", R"({"extends": "self.json"})");
  EXPECT_EQ(error("self.json"), "self.json:1:13: 'extends' is circular: self.json -> self.json");
  put("list.json", "[1]");
  put("c.json", R"({"extends": "list.json"})");
  EXPECT_EQ(error("c.json"), "c.json:1:13: extends 'list.json', which is a list, not an object");
  put("d.json", R"({"extends": 3})");
  EXPECT_EQ(error("d.json"), "d.json:1:13: 'extends' must be a string, found the integer 3");
}

TEST_F(Extends, ADoublingOfFilesIsBounded) {
  put("0.json", "{}");
  for (int i = 1; i <= 30; ++i) {
    const std::string extends = fmt::format(R"({{"extends": "{}.json"}})", i - 1);
    put(fmt::format("{}.json", i), fmt::format(R"({{"a": {0}, "b": {0}}})", extends));
  }
  EXPECT_THAT(error("30.json"), HasSubstr("more than 64 'extends' in one configuration"));
}

TEST(Override, SetsJsonOrBareStrings) {
  EXPECT_EQ(after("{}", "lr=1e-3"), Json({{"lr", 1e-3}}));
  EXPECT_EQ(after("{}", "n=3"), Json({{"n", 3}}));
  EXPECT_EQ(after("{}", "on=true"), Json({{"on", true}}));
  EXPECT_EQ(after("{}", "s=fast"), Json({{"s", "fast"}}));
  EXPECT_EQ(after("{}", "s="), Json({{"s", ""}}));
  EXPECT_EQ(after("{}", "s=a=b // c"), Json({{"s", "a=b // c"}}));
  EXPECT_EQ(after("{}", "s=\"3\""), Json({{"s", "3"}}));
  EXPECT_EQ(after("{}", "s=nan"), Json({{"s", "nan"}}));
  EXPECT_EQ(after("{}", "s=1e999"), Json({{"s", "1e999"}}));
  EXPECT_EQ(after("{}", "m={\"x\": [1]}"), Json::parse(R"({"m": {"x": [1]}})"));
}

TEST(Override, ReplacesAndAddsAlongThePath) {
  const char* text = R"({"a": {"b": 1, "c": 2}, "z": null})";
  EXPECT_EQ(after(text, "a.b=[5]"), Json::parse(R"({"a": {"b": [5], "c": 2}, "z": null})"));
  EXPECT_EQ(after(text, "a={}"), Json::parse(R"({"a": {}, "z": null})"));
  EXPECT_EQ(after(text, "z.y.x=1"),
            Json::parse(R"({"a": {"b": 1, "c": 2}, "z": {"y": {"x": 1}}})"));
}

TEST(Override, FindsListItemsByIndexAndName) {
  const char* text = R"({"phases": [{"name": "pretrain", "lr": 1}, {"name": "finetune"}, 7]})";
  EXPECT_EQ(after(text, "phases.1.lr=3")["phases"][1]["lr"], 3);
  EXPECT_EQ(after(text, "phases.finetune.lr=4")["phases"][1]["lr"], 4);
  EXPECT_EQ(after(text, "phases.2=8")["phases"][2], 8);
  EXPECT_EQ(set_error(text, "phases.fintune.lr=4"),
            "argument 'phases.fintune.lr=4': 'phases' holds 3 items and none is 'fintune'; did you "
            "mean 'finetune'?");
  EXPECT_THAT(set_error(text, "phases.3.opt.lr=4"),
              HasSubstr("holds 3 items and none is '3'; choose one of pretrain, finetune, e.g. "
                        "phases.pretrain.opt.lr"));
  EXPECT_THAT(set_error(text, "phases.-1=4"), HasSubstr("none is '-1'; choose one of pretrain, "
                                                        "finetune, e.g. phases.pretrain"));
  EXPECT_THAT(set_error(text, "phases.opt.lr=4"), HasSubstr("e.g. phases.pretrain.opt.lr"));
  EXPECT_EQ(set_error(text, "phases.2.lr=4"),
            "argument 'phases.2.lr=4': 'phases.2' is the integer 7 and holds no 'lr'");
}

TEST(Override, ErrorsNameTheArgument) {
  EXPECT_THAT(set_error("{}", "a"), StartsWith("argument 'a': expected key.path=value"));
  EXPECT_THAT(set_error("{}", "=1"), HasSubstr("empty name"));
  EXPECT_THAT(set_error("{}", "a..b=1"), HasSubstr("empty name"));
  EXPECT_THAT(set_error("{}", "a.=1"), HasSubstr("empty name"));
  EXPECT_THAT(set_error("{}", "a={\"b\": }"), StartsWith("argument 'a={\"b\": }': syntax error"));
  EXPECT_THAT(set_error("{}", "a=[1"), StartsWith("argument 'a=[1': syntax error"));
  EXPECT_EQ(set_error("{}", "a=[one,2]"),
            "argument 'a=[one,2]': no JSON; texts in a list need quotes, as in '[\"a\", \"b\"]'");
  EXPECT_THAT(set_error("{}", "a=\xFF"), HasSubstr("invalid UTF-8"));
  EXPECT_THAT(set_error("{}", "a\nb"), StartsWith("argument 'a\\nb': "));
  EXPECT_THAT(set_error("[]", "a=1"), HasSubstr("must be an object"));
  std::string deep = "a";
  for (int i = 0; i < 250; ++i) deep += ".a";
  EXPECT_THAT(set_error("{}", deep + "=1"), HasSubstr("deeper than 200"));
  const std::string nested = std::string(150, '[') + std::string(150, ']');
  EXPECT_THAT(set_error("{}", deep.substr(0, 199) + "=" + nested), HasSubstr("deeper than 200"));

  Document document = Document::from_text(R"({"a": {"b": 1}})", "a.json");
  document.set("a.c=x");
  EXPECT_EQ(document.root().at("a").at("c").where(), "argument 'a.c=x'");
  EXPECT_EQ(document.root().at("a").at("b").where(), "a.json:1:13");
  EXPECT_EQ(document.root().members()[0].origin.text(), "a.json:1:2");
}

TEST(Override, OfAValueKeepsItsPlace) {
  Document document = Document::from_text(R"({"a": {"b": 1}, "n": 2})", "a.json");
  const Value set = read("{\n \"a.b\": 5, \"n.c\": 6}");
  document.set("a.b", set.at("a.b"));
  EXPECT_EQ(document.root().at("a").at("b").where(), "a.json:2:9");
  EXPECT_EQ(usage_of([&] { document.set("n.c", set.at("n.c")); }),
            "a.json:2:19: 'n' is the integer 2 and holds no 'c'");
  EXPECT_THAT(usage_of([&] { document.set("a..b", set.at("a.b")); }), HasSubstr("empty name"));
}

TEST(Value, ComesFromJson) {
  const Json json = Json::parse(R"({"b": [1, 2.5, "x", null, true, -4], "a": {}})");
  const Value value = Value::from_json(json, "run/config.json");
  EXPECT_EQ(value.to_json().dump(), json.dump());
  EXPECT_EQ(value.at("b").items()[2].where(), "run/config.json");
  EXPECT_EQ(Value::from_json(nlohmann::json(3), "x").as_int(), 3);
  EXPECT_THAT(usage_of([] { Value::from_json(Json(std::nan("")), "x"); }), StartsWith("x: "));
  EXPECT_THAT(usage_of([] { Value::from_json(Json(INFINITY), "x"); }), StartsWith("x: "));
  Json deep = 1;
  for (int i = 0; i < 300; ++i) deep = Json::array({deep});
  EXPECT_THAT(usage_of([&] { Value::from_json(deep, "x"); }), HasSubstr("deeper than 200"));
}

TEST(Value, MergesObjectsAndReplacesTheRest) {
  const Value base = read(R"({"a": {"x": 1, "y": [1, 2]}, "b": 2})");
  const Value over = read(R"({"a": {"y": [3], "z": 4}, "c": null})");
  EXPECT_EQ(base.merged(over).to_json(),
            Json::parse(R"({"a": {"x": 1, "y": [3], "z": 4}, "b": 2, "c": null})"));
  EXPECT_EQ(base.merged(read("3")).as_int(), 3);
  EXPECT_EQ(base.merged(over).members()[2].origin.text(), "a.json:1:27") << "of the key";
  const Value later = Document::from_text(R"({ "b": 3})", "b.json").root();
  EXPECT_EQ(base.merged(later).where(), "b.json:1:1");
  EXPECT_EQ(base.merged(later).members()[1].origin.text(), "b.json:1:3") << "of the key";
}

TEST(Value, EqualityIsOfContent) {
  EXPECT_EQ(read(R"({"a": 1, "b": [true]})"), read("{\"b\": [true],\n \"a\": 1}"));
  EXPECT_NE(read(R"({"a": 1})"), read(R"({"a": 2})"));
  EXPECT_NE(read(R"({"a": 1})"), read(R"({"b": 1})"));
  EXPECT_NE(read("1"), read("1.0"));
  EXPECT_EQ(Value(), read("null"));
  EXPECT_EQ(Value().where(), "config");
}

}  // namespace
}  // namespace moesaic
