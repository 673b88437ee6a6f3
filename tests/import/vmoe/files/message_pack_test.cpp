// SPDX-License-Identifier: Apache-2.0
#include "import/vmoe/files/message_pack.h"

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic::message_pack {
namespace {

class MessagePackTest : public ::testing::Test {
 protected:
  Input input(std::string bytes) {
    bytes_ = std::move(bytes);
    return Input(std::as_bytes(std::span(bytes_)), file_, 100);
  }

  const std::string file_ = "file";
  std::string bytes_;
};

std::string bytes_of(int length, unsigned long long value) {
  std::string text;
  for (int i = length - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(MessagePackTest, ReadsEveryCode) {
  EXPECT_EQ(input("\x7f").natural("n"), 127u);
  EXPECT_EQ(input("\xcc\xff").natural("n"), 255u);
  EXPECT_EQ(input("\xcd\xff\xfe").natural("n"), 0xfffeu);
  EXPECT_EQ(input("\xce\xff\xff\xff\xfe").natural("n"), 0xfffffffeu);
  EXPECT_EQ(input("\xcf" + bytes_of(8, UINT64_MAX)).natural("n"), UINT64_MAX);
  EXPECT_EQ(input("\xd0\x7f").natural("n"), 127u);
  EXPECT_EQ(input("\xd3" + bytes_of(8, 5)).natural("n"), 5u);
  EXPECT_TRUE(input("\xc3").boolean("b"));
  EXPECT_FALSE(input("\xc2").boolean("b"));
  EXPECT_NO_THROW(input("\xc0").nil("x"));
  for (const std::string start : {"\xa3", "\xd9\x03"})
    EXPECT_EQ(input(start + "abc").string("s"), "abc");
  EXPECT_EQ(input("\xda" + bytes_of(2, 3) + "abc").string("s"), "abc");
  EXPECT_EQ(input("\xdb" + bytes_of(4, 3) + "abc").string("s"), "abc");
  for (const auto& [code, length] : {std::pair{"\xc4", 1}, {"\xc5", 2}, {"\xc6", 4}}) {
    EXPECT_EQ(text_of(input(code + bytes_of(length, 3) + "abc").binary("b")), "abc");
  }
  EXPECT_EQ(input("\x9f" + std::string(15, '\0')).array("a"), 15u);
  EXPECT_EQ(input("\xdc" + bytes_of(2, 2) + "xx").array("a"), 2u);
  EXPECT_EQ(input("\xdd" + bytes_of(4, 2) + "xx").array("a"), 2u);
  EXPECT_EQ(input("\x82" + std::string(4, '\0')).map("m"), 2u);
  EXPECT_EQ(input("\xde" + bytes_of(2, 2) + "xxxx").map("m"), 2u);
  EXPECT_EQ(input("\xdf" + bytes_of(4, 2) + "xxxx").map("m"), 2u);
}

TEST_F(MessagePackTest, ReadsEveryExtension) {
  const auto read = [&](const std::string& start, int type, int length) {
    const std::string bytes = start + static_cast<char>(type) + std::string(size_t(length), 'e');
    EXPECT_EQ(test::failure_of([&] { input(bytes).extension(type ^ 3, "it"); }),
              fmt::format("file: byte 100: unknown extension type {}, it has {}", type, type ^ 3));
    Input whole = input(bytes);
    Input body = whole.extension(type, "it");
    EXPECT_EQ(body.position(), 100 + start.size() + 1);
    for (int i = 0; i < length; ++i) EXPECT_EQ(body.natural("a letter"), uint64_t{'e'});
    body.end("it");
    whole.end("all");
  };
  for (const auto& [code, length] :
       {std::pair{"\xd4", 1}, {"\xd5", 2}, {"\xd6", 4}, {"\xd7", 8}, {"\xd8", 16}}) {
    read(code, 6, length);
  }
  for (const auto& [code, length] : {std::pair{"\xc7", 1}, {"\xc8", 2}, {"\xc9", 4}}) {
    read(code + bytes_of(length, 3), 255, 3);
  }
}

TEST_F(MessagePackTest, SaysWhatIsThereInstead) {
  const auto found = [&](const std::string& bytes) {
    return test::failure_of([&] { input(bytes).natural("the rank"); });
  };
  EXPECT_EQ(found("\xa0"),
            "file: byte 100: the rank must be a whole number from 0, found a string");
  EXPECT_THAT(found("\xff"), HasSubstr("found a negative number"));
  EXPECT_THAT(found("\xd3" + bytes_of(8, UINT64_MAX)), HasSubstr("found a negative number"));
  EXPECT_THAT(found("\xca" + bytes_of(4, 0)), HasSubstr("found a fraction"));
  EXPECT_THAT(found("\xcb" + bytes_of(8, 0)), HasSubstr("found a fraction"));
  EXPECT_THAT(found("\xc0"), HasSubstr("found nil"));
  EXPECT_THAT(found("\xc3"), HasSubstr("found a boolean"));
  EXPECT_THAT(found("\x90"), HasSubstr("found an array"));
  EXPECT_THAT(found("\x80"), HasSubstr("found a map"));
  EXPECT_THAT(found(std::string("\xc4\0", 2)), HasSubstr("found binary data"));
  EXPECT_THAT(found("\xd4\x01x"), HasSubstr("found an extension"));
  EXPECT_THAT(found("\xc1"), HasSubstr("found no MessagePack"));
  EXPECT_THAT(found(""), HasSubstr("truncated: the rank expected"));
  EXPECT_THAT(found("\xcf" + bytes_of(7, 0)), HasSubstr("truncated: the rank expected"));
}

TEST_F(MessagePackTest, KeepsItsPlaceInside) {
  Input outer = input("\x92\xc4\x02\x01\xc0\x05");
  outer.array_of(2, "pair");
  Input inner = outer.packed("body");
  EXPECT_EQ(outer.natural("after"), 5u);
  inner.set_array("a/b");
  EXPECT_EQ(inner.position(), 103u);
  EXPECT_EQ(inner.natural("one"), 1u);
  EXPECT_EQ(test::failure_of([&] { inner.natural("two"); }),
            "file: byte 104: array 'a/b': two must be a whole number from 0, found nil");
  EXPECT_THAT(test::failure_of([&] { inner.end("it"); }), HasSubstr("1 bytes after it"));
  EXPECT_NO_THROW(outer.end("pair"));
}

TEST_F(MessagePackTest, WritesTheShortestForm) {
  const auto natural = [](uint64_t value) { return Output().natural(value).text(); };
  EXPECT_EQ(natural(127), "\x7f");
  EXPECT_EQ(natural(128), "\xcc\x80");
  EXPECT_EQ(natural(256), std::string("\xcd\x01\0", 3));
  EXPECT_EQ(natural(65536), "\xce" + bytes_of(4, 65536));
  EXPECT_EQ(natural(uint64_t{1} << 32), "\xcf" + bytes_of(8, uint64_t{1} << 32));
  EXPECT_EQ(Output().extension(6, "abcd").text(),
            "\xd6\x06"
            "abcd");
  EXPECT_EQ(Output().extension(6, "abc").text(),
            "\xc7\x03\x06"
            "abc");
  EXPECT_EQ(Output().extension_header(1, 1 << 20).text(), "\xc9" + bytes_of(4, 1 << 20) + "\x01");
  EXPECT_EQ(Output().binary_header(70'000).text(), "\xc6" + bytes_of(4, 70'000));
  EXPECT_EQ(Output().array(16).text(), "\xdc" + bytes_of(2, 16));
  EXPECT_EQ(Output().map(16).text(), "\xde" + bytes_of(2, 16));
  EXPECT_EQ(Output().string("a").boolean(true).nil().text(),
            "\xa1"
            "a\xc3\xc0");
  EXPECT_THAT(test::failure_of([] { Output().array(uint64_t{1} << 32); }),
              HasSubstr("cannot hold"));
}

}  // namespace
}  // namespace moesaic::message_pack
