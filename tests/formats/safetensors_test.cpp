// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/safetensors.h"

#include <fmt/format.h>

#include <map>

#include "base/support.h"
#include "base/work.h"
#include "formats/pack.h"
#include "support/matchers.h"

namespace moesaic::safetensors {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class SafetensorsTest : public ::testing::Test {
 protected:
  // A file of this header, with its true length in front, and this data.
  File open(std::string_view header, std::string_view data = "") {
    return open_raw(test::little_endian64(header.size()) + std::string(header) + std::string(data));
  }
  File open_raw(std::string_view bytes) {
    test::put(path_, bytes);
    return File(path_);
  }
  std::string refused(std::string_view header, std::string_view data = "") {
    return refused_raw(test::little_endian64(header.size()) + std::string(header) +
                       std::string(data));
  }
  std::string refused_raw(std::string_view bytes) {
    const std::string message = test::failure_of([&] { open_raw(bytes); });
    EXPECT_THAT(message, HasSubstr(path_.string() + ": "));
    EXPECT_LT(message.size(), path_.string().size() + 300);
    return message;
  }

  test::TempDir folder_;
  std::filesystem::path path_ = folder_ / "model.safetensors";
};

// One tensor with the given dtype, shape and offsets.
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"x":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

TEST_F(SafetensorsTest, ReadsAFile) {
  const File file = open(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
                         R"("__metadata__":{"format":"pt","note":"a\nb"},)"
                         R"("a":{"data_offsets":[0,8],"dtype":"F32","shape":[1,2]}}   )",
                         "12345678abc");
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.entries()[0].dtype, "F32");
  EXPECT_THAT(file.entries()[0].shape, ElementsAre(1, 2));
  EXPECT_EQ(text_of(file.bytes(file.entries()[0])), "12345678");
  ASSERT_NE(file.find("b"), nullptr);
  EXPECT_EQ(text_of(file.bytes(*file.find("b"))), "abc");
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find("__metadata__"), nullptr);
  EXPECT_EQ(file.metadata().at("note"), "a\nb");
  EXPECT_EQ(file.metadata().size(), 2u);
}

TEST_F(SafetensorsTest, ReadsScalarsAndEmptyTensors) {
  const File file =
      open(R"({"none":{"dtype":"F64","shape":[0,9223372036854775807],"data_offsets":[0,0]},)"
           R"("scalar":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
           R"("tail":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}})",
           "12345678");
  EXPECT_EQ(text_of(file.bytes(*file.find("scalar"))), "12345678");
  EXPECT_TRUE(file.bytes(*file.find("none")).empty());
  EXPECT_TRUE(file.bytes(*file.find("tail")).empty());
  EXPECT_TRUE(open("{}").entries().empty());
}

TEST_F(SafetensorsTest, KnowsEveryDtype) {
  const std::map<std::string, std::size_t> sizes = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"I16", 2},
      {"I8", 1},  {"U64", 8}, {"U32", 4}, {"U16", 2},  {"U8", 1},  {"BOOL", 1}};
  for (const auto& [dtype, size] : sizes) {
    EXPECT_EQ(dtype_size(dtype), size);
    const std::string data(3 * size, 'd');
    EXPECT_NO_THROW(open(one(dtype, "[3]", fmt::format("[0,{}]", data.size())), data)) << dtype;
  }
  EXPECT_THAT(test::failure_of([] { dtype_size("f32"); }),
              AllOf(HasSubstr("'f32'"), HasSubstr("F64, F32")));
}

TEST_F(SafetensorsTest, MovesWithItsMapping) {
  File first = open(one("U8", "[3]", "[0,3]"), "abc");
  const File file = std::move(first);
  EXPECT_EQ(text_of(file.bytes(*file.find("x"))), "abc");
}

TEST_F(SafetensorsTest, RefusesWrongHeaderLengths) {
  EXPECT_THAT(refused_raw(""), HasSubstr("found 0"));
  EXPECT_THAT(refused_raw("1234567"), HasSubstr("found 7"));
  EXPECT_THAT(refused_raw(test::little_endian64(2)), HasSubstr("needs 2 bytes, found 0"));
  EXPECT_THAT(refused_raw(test::little_endian64(1ULL << 63) + "{}"),
              HasSubstr("9223372036854775808 bytes long"));
  EXPECT_THAT(refused_raw(test::little_endian64(UINT64_MAX) + "{}"), HasSubstr("bytes long"));
  EXPECT_THAT(refused_raw(test::little_endian64(kMaxHeaderBytes + 1) + "{}"),
              HasSubstr("at most 100000000"));
  EXPECT_THAT(refused_raw(test::little_endian64(kMaxHeaderBytes) + "{}"),
              HasSubstr("truncated: the header needs 100000000 bytes, found 2"));
  EXPECT_THAT(refused_raw(test::little_endian64(0)), HasSubstr("no '{' at byte 8"));
  EXPECT_THAT(refused_raw("PK\3\4 a zip file of pickles"), HasSubstr("a corrupt archive"));
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  const std::string header = one("U8", "[3]", "[0,3]");
  const std::string whole = test::little_endian64(header.size()) + header + "abc";
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string message = refused_raw(whole.substr(0, n));
    const bool in_header = n >= 8 && n < 8 + header.size();
    EXPECT_EQ(message.find("truncated: the header") != std::string::npos, in_header) << n;
  }
  EXPECT_THAT(refused_raw(whole.substr(0, whole.size() - 1)),
              HasSubstr("truncated: the tensors need 3 bytes, found 2"));
}

TEST_F(SafetensorsTest, RefusesTrailingBytes) {
  EXPECT_THAT(refused(one("U8", "[3]", "[0,3]"), "abcd"),
              HasSubstr("1 bytes after the last tensor: expected 3, found 4"));
  EXPECT_THAT(refused("{}", "x"), HasSubstr("expected 0, found 1"));
}

TEST_F(SafetensorsTest, RefusesBadJson) {
  for (const char* header : {"{", "{]", "{\"x\"}", "{}{}", "{} x", "{\"x\":}", "{'x':{}}", "{,}",
                             "{\"x\":-}", "{\"x\":nul}", "{\"\\ud800\":{}}"}) {
    EXPECT_THAT(refused(header), HasSubstr("not valid JSON at byte")) << header;
  }
  EXPECT_THAT(refused(" {}"), HasSubstr("no '{'"));
  EXPECT_THAT(refused("\xef\xbb\xbf{}"), HasSubstr("no '{'"));
  EXPECT_THAT(refused(std::string("{}\0hidden", 9)), HasSubstr("not valid JSON at byte 10"));
}

TEST_F(SafetensorsTest, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(refused("{\"\xff\":{}}"), HasSubstr("not valid UTF-8 at byte"));
  EXPECT_THAT(refused("{\"__metadata__\":{\"k\":\"\xc3\"}}"), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(refused("{\"\xed\xa0\x80\":{}}"), HasSubstr("not valid UTF-8"));  // a surrogate
}

TEST_F(SafetensorsTest, RefusesDuplicateKeys) {
  EXPECT_THAT(refused(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                      R"("x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                      "ab"),
              HasSubstr("duplicate key 'x'"));
  EXPECT_THAT(refused(R"({"x":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "a"),
              HasSubstr("duplicate key 'dtype'"));
  EXPECT_THAT(refused(R"({"__metadata__":{"k":"1","k":"2"}})"), HasSubstr("duplicate key 'k'"));
  EXPECT_THAT(refused(R"({"__metadata__":{},"__metadata__":{}})"),
              HasSubstr("duplicate key '__metadata__'"));
}

TEST_F(SafetensorsTest, RefusesHolesAndOverlaps) {
  const auto two = [](std::string_view first, std::string_view second) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                       first, second);
  };
  EXPECT_NO_THROW(open(two("[4,8]", "[0,4]"), "12345678"));
  EXPECT_THAT(refused(two("[0,4]", "[5,9]"), "123456789"),
              AllOf(HasSubstr("'b'"), HasSubstr("starts at byte 5, expected 4 (a hole)")));
  EXPECT_THAT(refused(two("[1,5]", "[5,9]"), "123456789"), HasSubstr("(a hole)"));
  EXPECT_THAT(refused(two("[0,4]", "[3,7]"), "1234567"), HasSubstr("(an overlap)"));
  EXPECT_THAT(refused(two("[0,4]", "[0,4]"), "1234"), HasSubstr("(an overlap)"));
}

TEST_F(SafetensorsTest, RefusesOffsetsThatMakeNoSense) {
  EXPECT_THAT(refused(one("U8", "[4]", "[4,0]"), "1234"), HasSubstr("run backwards"));
  EXPECT_THAT(refused(one("U8", "[4]", "[0,5]"), "12345"),
              HasSubstr("U8 of shape [4] needs 4 bytes, its data_offsets give 5"));
  EXPECT_THAT(refused(one("F32", "[2,3]", "[0,6]"), "123456"), HasSubstr("needs 24 bytes"));
  EXPECT_THAT(refused(one("U8", "[4]", "[0]"), "1234"), HasSubstr("need two numbers"));
  EXPECT_THAT(refused(one("U8", "[4]", "[]"), "1234"), HasSubstr("need two numbers"));
  EXPECT_THAT(refused(one("U8", "[4]", "[0,4,4]"), "1234"), HasSubstr("found a third"));
  EXPECT_THAT(refused(one("U8", "[4]", "[-4,0]"), "1234"), HasSubstr("found a negative number"));
  EXPECT_THAT(refused(one("U8", "[4]", "[0,4.0]"), "1234"), HasSubstr("found a fraction"));
  // Only the last byte of the file is claimed, from an end beyond 2^64 less a little.
  EXPECT_THAT(refused(one("U8", "[4]", "[18446744073709551612,0]"), "1234"),
              HasSubstr("run backwards"));
  EXPECT_THAT(refused(one("U8", "[18446744073709551615]", "[0,18446744073709551615]"), "1234"),
              HasSubstr("too large"));
  EXPECT_THAT(refused(one("U8", "[9223372036854775807]", "[0,9223372036854775807]"), "1234"),
              HasSubstr("truncated: the tensors need 9223372036854775807 bytes, found 4"));
}

TEST_F(SafetensorsTest, RefusesShapesWhoseProductWrapsAround) {
  // 2^32 * 2^32 is 0 in 64 bits.
  EXPECT_THAT(refused(one("U8", "[4294967296,4294967296]", "[0,0]")), HasSubstr("more than 2^64"));
  // The product fits, times the size of the dtype it wraps to 0.
  EXPECT_THAT(refused(one("F32", "[4611686018427387904]", "[0,0]")), HasSubstr("more than 2^64"));
  EXPECT_THAT(refused(one("F64", "[2,1152921504606846977]", "[0,16]"), std::string(16, 'x')),
              HasSubstr("more than 2^64"));
}

TEST_F(SafetensorsTest, RefusesBadShapes) {
  EXPECT_THAT(refused(one("U8", "[-1]", "[0,1]"), "a"),
              AllOf(HasSubstr("tensor 'x'"), HasSubstr("shape"), HasSubstr("negative")));
  EXPECT_THAT(refused(one("U8", "[1.5]", "[0,1]"), "a"), HasSubstr("fraction"));
  EXPECT_THAT(refused(one("U8", "[18446744073709551616]", "[0,1]"), "a"), HasSubstr("huge"));
  EXPECT_THAT(refused(one("U8", "[\"1\"]", "[0,1]"), "a"), HasSubstr("found a string"));
  EXPECT_THAT(refused(one("U8", "[[1]]", "[0,1]"), "a"), HasSubstr("found an array"));
  EXPECT_THAT(refused(one("U8", "[null]", "[0,1]"), "a"), HasSubstr("found null"));
  EXPECT_THAT(refused(one("U8", "1", "[0,1]"), "a"),
              HasSubstr("shape must be an array, found a number"));
}

TEST_F(SafetensorsTest, RefusesUnknownDtypes) {
  EXPECT_THAT(refused(one("F8_E4M3", "[1]", "[0,1]"), "a"),
              AllOf(HasSubstr("tensor 'x'"), HasSubstr("unknown dtype 'F8_E4M3'")));
  EXPECT_THAT(refused(one("", "[1]", "[0,1]"), "a"), HasSubstr("unknown dtype ''"));
}

TEST_F(SafetensorsTest, RefusesValuesOfAnotherKind) {
  EXPECT_THAT(refused(R"({"x":1})"), HasSubstr("'x' must be an object, found a number"));
  EXPECT_THAT(refused(R"({"x":[]})"), HasSubstr("found an array"));
  EXPECT_THAT(refused(R"({"x":null})"), HasSubstr("found null"));
  EXPECT_THAT(refused(R"({"x":true})"), HasSubstr("found a boolean"));
  EXPECT_THAT(refused(R"({"__metadata__":"x"})"), HasSubstr("found a string"));
  EXPECT_THAT(refused(R"({"__metadata__":{"k":1}})"),
              HasSubstr("__metadata__ 'k' must be a string, found a number"));
  EXPECT_THAT(refused(R"({"__metadata__":{"k":{}}})"), HasSubstr("found an object"));
  EXPECT_THAT(refused(R"({"x":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", "a"),
              HasSubstr("dtype must be a string, found a number"));
  EXPECT_THAT(refused(R"({"x":{"dtype":"U8","shape":"[1]","data_offsets":[0,1]}})", "a"),
              HasSubstr("shape must be an array, found a string"));
}

TEST_F(SafetensorsTest, RefusesMissingAndUnknownFields) {
  EXPECT_THAT(refused(R"({"x":{}})"), HasSubstr("tensor 'x': no dtype"));
  EXPECT_THAT(refused(R"({"x":{"dtype":"U8","data_offsets":[0,1]}})", "a"), HasSubstr("no shape"));
  EXPECT_THAT(refused(R"({"x":{"dtype":"U8","shape":[1]}})", "a"), HasSubstr("no data_offsets"));
  EXPECT_THAT(
      refused(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}})", "a"),
      HasSubstr("unknown key 'strides'"));
}

TEST_F(SafetensorsTest, RefusesDeepNestingAtOnce) {
  std::string deep = "{";
  for (int i = 0; i < 1'000'000; ++i) deep += "\"a\":{";
  refused(deep);
  EXPECT_THAT(refused("{\"x\":{\"shape\":" + std::string(1'000'000, '[')),
              HasSubstr("found an array"));
}

TEST_F(SafetensorsTest, KeepsHostileNamesOutOfTheMessage) {
  const std::string message = refused(R"({"a\nb\u001b[31m":1})");
  EXPECT_THAT(message, HasSubstr(R"('a\nb\x1b[31m')"));
  EXPECT_THAT(refused("{\"" + std::string(100'000, 'n') + "\":1}"), HasSubstr("nnn...'"));
}

TEST_F(SafetensorsTest, RefusesAnEntryOfAnotherFile) {
  const File file = open(one("U8", "[3]", "[0,3]"), "abc");
  Entry other = *file.find("x");
  other.end = 4;
  test::usage_of([&] { file.bytes(other); });
}

TEST_F(SafetensorsTest, BoundsWhatAHeaderHolds) {
  std::string sizes = "[1";
  for (int i = 0; i < 64; ++i) sizes += ",1";
  EXPECT_THAT(refused(one("U8", sizes + "]", "[0,1]")), HasSubstr("more than 64 dimensions"));
  std::string texts;
  for (int i = 0; i <= 10'000; ++i) texts += fmt::format("{}\"{}\":\"\"", i == 0 ? "" : ",", i);
  EXPECT_THAT(refused("{\"__metadata__\":{" + texts + "}}"),
              HasSubstr("__metadata__ has more than 10000 texts"));
  std::string tensors;
  for (int i = 0; i < 170'000; ++i) {
    tensors += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                           i == 0 ? "" : ",", i);
  }
  const test::Work work;
  EXPECT_THAT(refused("{" + tensors + "}"), HasSubstr("the header has more than 1000000 values"));
  EXPECT_LT(work.peak_bytes(), static_cast<int64_t>(4 * tensors.size()) + (64 << 20));
}

}  // namespace
}  // namespace moesaic::safetensors
