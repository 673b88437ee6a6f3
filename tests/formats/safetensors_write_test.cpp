// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <cstring>

#include "base/support.h"
#include "formats/pack.h"
#include "moesaic/formats/safetensors.h"
#include "support/matchers.h"

namespace moesaic::safetensors {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string content_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A tensor with its bytes.
struct Filled : Item {
  std::span<const std::byte> bytes;
};

void write(const std::filesystem::path& path, const std::vector<Filled>& tensors,
           const std::map<std::string, std::string>& metadata = {}) {
  const auto bytes_of_item = [&](const Item& item) {
    return std::ranges::find(tensors, item.name, &Filled::name)->bytes;
  };
  write_streamed(path, std::vector<Item>(tensors.begin(), tensors.end()), bytes_of_item, metadata);
}

class SafetensorsWriteTest : public ::testing::Test {
 protected:
  test::TempDir folder_;
  std::filesystem::path path_ = folder_ / "model.safetensors";
};

TEST_F(SafetensorsWriteTest, WritesWhatItReads) {
  const std::array<float, 6> weights = {1.0f, -2.5f, 3.0f, 0.0f, 1e-30f, 5.0f};
  const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                       {"quote", "\"\\\n\xce\xb1"}};
  write(path_,
        {{{"b\"\xce\xb1", "U8", {3}}, bytes_of("abc")},
         {{"weights", "F32", {2, 3}}, std::as_bytes(std::span(weights))},
         {{"empty", "F16", {0, 4}}, {}},
         {{"scalar", "I64", {}}, bytes_of("12345678")}},
        metadata);
  const File file(path_);
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_THAT(file.find("weights")->shape, ElementsAre(2, 3));
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("weights")).data(), weights.data(), 24), 0);
  EXPECT_EQ(content_of(file.bytes(*file.find("b\"\xce\xb1"))), "abc");
  EXPECT_EQ(content_of(file.bytes(*file.find("scalar"))), "12345678");
  EXPECT_THAT(file.find("scalar")->shape, IsEmpty());
  EXPECT_THAT(file.find("empty")->shape, ElementsAre(0, 4));
  EXPECT_THAT(folder_.names(), ElementsAre("model.safetensors"));
}

TEST_F(SafetensorsWriteTest, WritesTheSameFileOneTensorAtATime) {
  const std::vector<Item> items = {{"a", "U8", {3}}, {"b", "I16", {2}}, {"c", "U8", {0}}};
  const std::map<std::string, std::string> made = {{"a", "abc"}, {"b", "wxyz"}, {"c", ""}};
  write(path_, {{items[0], bytes_of("abc")}, {items[1], bytes_of("wxyz")}, {items[2], {}}});
  std::vector<std::string> asked;
  std::string held;
  write_streamed(folder_ / "streamed", items, [&](const Item& item) {
    asked.push_back(item.name);
    held = made.at(item.name);
    return bytes_of(held);
  });
  EXPECT_EQ(test::get(folder_ / "streamed"), test::get(path_));
  EXPECT_THAT(asked, ElementsAre("b", "a", "c"));
  const auto longer = [](const Item&) { return bytes_of("abcd"); };
  EXPECT_THAT(test::failure_of([&] { write_streamed(folder_ / "wrong", items, longer); }),
              HasSubstr("tensor 'a': U8 of shape [3] does not have 4 bytes"));
  EXPECT_THAT(folder_.names(), ElementsAre("model.safetensors", "streamed"));
}

TEST_F(SafetensorsWriteTest, WritesAnEmptyFile) {
  write(path_, {});
  EXPECT_TRUE(File(path_).entries().empty());
  EXPECT_EQ(test::get(path_), test::little_endian64(8) + "{}      ");
}

TEST_F(SafetensorsWriteTest, AlignsHeaderAndTensors) {
  for (std::size_t n = 1; n < 12; ++n) {
    write(path_, {{{"a", "U8", {3}}, bytes_of("abc")},
                  {{std::string(n, 'z'), "F64", {1}}, bytes_of("12345678")},
                  {{"m", "F16", {1}}, bytes_of("hh")}});
    uint64_t length = 0;
    std::memcpy(&length, test::get(path_).data(), 8);
    EXPECT_EQ(length % 8, 0u);
    const File file(path_);
    for (const Entry& entry : file.entries()) EXPECT_EQ(entry.begin % dtype_size(entry.dtype), 0u);
  }
}

TEST_F(SafetensorsWriteTest, WritesEqualFilesForEqualContent) {
  const Filled a = {{"a", "U8", {1}}, bytes_of("a")};
  const Filled b = {{"b", "U8", {1}}, bytes_of("b")};
  write(path_, {a, b}, {{"k", "v"}});
  const std::string first = test::get(path_);
  write(path_, {b, a}, {{"k", "v"}});
  EXPECT_EQ(test::get(path_), first);
}

TEST_F(SafetensorsWriteTest, WritesNothingThatItWouldRefuse) {
  const auto refused_item = [&](const Filled& item) {
    return test::failure_of([&] { write(path_, {item}); });
  };
  EXPECT_THAT(refused_item({{"x", "F32", {2}}, bytes_of("1234567")}),
              AllOf(HasSubstr("tensor 'x'"), HasSubstr("does not have 7 bytes")));
  EXPECT_THAT(refused_item({{"x", "U8", {-1}}, bytes_of("1")}), HasSubstr("negative"));
  EXPECT_THAT(refused_item({{"x", "U8", {1LL << 32, 1LL << 32}}, {}}), HasSubstr("is too large"));
  EXPECT_THAT(refused_item({{"x", "float", {1}}, bytes_of("1")}), HasSubstr("unknown dtype"));
  EXPECT_THAT(refused_item({{"__metadata__", "U8", {1}}, bytes_of("1")}),
              HasSubstr("cannot be the name of a tensor"));
  EXPECT_THAT(refused_item({{"\xff", "U8", {1}}, bytes_of("1")}), HasSubstr("UTF-8"));
  const Filled fine = {{"x", "U8", {1}}, bytes_of("1")};
  EXPECT_THAT(test::failure_of([&] {
                write(path_, {fine, fine});
              }),
              HasSubstr("two tensors are named 'x'"));
  EXPECT_THAT(test::failure_of([&] { write(path_, {fine}, {{"k", "\xff"}}); }), HasSubstr("UTF-8"));
  EXPECT_THAT(folder_.names(), IsEmpty());
}

}  // namespace
}  // namespace moesaic::safetensors
