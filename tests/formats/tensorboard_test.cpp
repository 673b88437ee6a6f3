// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <regex>

#include "base/support.h"
#include "support/decoded_image.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using ::testing::MatchesRegex;

// A second decoder, written from the formats' descriptions and sharing nothing with the writer.
uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

uint32_t unmasked(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8U;
  return (rotated >> 17) | (rotated << 15);
}

template <class T>
T take(std::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof(T)) throw std::runtime_error("record cut short");
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

std::string_view take_bytes(std::string_view& bytes, uint64_t n) {
  if (n > bytes.size()) throw std::runtime_error("bytes cut short");
  const std::string_view front = bytes.substr(0, n);
  bytes.remove_prefix(n);
  return front;
}

std::vector<std::string> records(std::string_view bytes) {
  std::vector<std::string> all;
  while (!bytes.empty()) {
    const std::string_view length_bytes = bytes.substr(0, 8);
    const auto length = take<uint64_t>(bytes);
    EXPECT_EQ(unmasked(take<uint32_t>(bytes)), slow_crc32c(length_bytes));
    const std::string_view data = take_bytes(bytes, length);
    EXPECT_EQ(unmasked(take<uint32_t>(bytes)), slow_crc32c(data));
    all.emplace_back(data);
  }
  return all;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(bytes);
    value |= uint64_t{byte & 0x7fU} << shift;
    if ((byte & 0x80) == 0) return value;
  }
}

// field number -> raw value: numbers as their 64 bits, messages and strings as text.
struct Message {
  std::map<uint64_t, uint64_t> numbers;
  std::map<uint64_t, std::string> texts;
};

Message decode(std::string_view bytes) {
  Message message;
  while (!bytes.empty()) {
    const uint64_t key = take_varint(bytes);
    switch (key & 7) {
      case 0:
        message.numbers[key >> 3] = take_varint(bytes);
        break;
      case 1:
        message.numbers[key >> 3] = take<uint64_t>(bytes);
        break;
      case 2:
        message.texts[key >> 3] = take_bytes(bytes, take_varint(bytes));
        break;
      case 5:
        message.numbers[key >> 3] = take<uint32_t>(bytes);
        break;
      default:
        throw std::runtime_error("unknown wire type");
    }
  }
  return message;
}

struct Scalar {
  std::string tag;
  float value;
  int64_t step;
  double wall_time;
};

std::vector<Scalar> scalars(const std::filesystem::path& path) {
  const auto all = records(test::get(path));
  EXPECT_FALSE(all.empty());
  EXPECT_EQ(decode(all.at(0)).texts.at(3), "brain.Event:2");
  EXPECT_GT(std::bit_cast<double>(decode(all.at(0)).numbers.at(1)), 1.6e9);
  std::vector<Scalar> found;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Message event = decode(all[i]);
    const Message value = decode(decode(event.texts.at(5)).texts.at(1));
    found.push_back(
        {value.texts.at(1), std::bit_cast<float>(static_cast<uint32_t>(value.numbers.at(2))),
         static_cast<int64_t>(event.numbers.at(2)), std::bit_cast<double>(event.numbers.at(1))});
  }
  return found;
}

TEST(EventWriter, WritesScalars) {
  const test::TempDir folder;
  EventWriter writer(folder / "run/events");
  writer.add_scalar("train/loss", 0.5, 0, 1700000000.25);
  writer.add_scalar("train/loss", -1e-3, 300, 1700000001.5);
  writer.add_scalar(std::string(1000, 't'), 3e38, int64_t{1} << 40, 0.0);
  writer.add_scalar("\xce\xb1", std::numeric_limits<double>::infinity(), -1, 1.0);
  writer.add_scalar("nan", std::numeric_limits<double>::quiet_NaN(), 1, 1.0);
  writer.flush();
  const auto found = scalars(writer.path());
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].tag, "train/loss");
  EXPECT_EQ(found[0].value, 0.5f);
  EXPECT_EQ(found[0].step, 0);
  EXPECT_EQ(found[0].wall_time, 1700000000.25);
  EXPECT_EQ(found[1].value, -1e-3f);
  EXPECT_EQ(found[1].step, 300);
  EXPECT_EQ(found[2].tag, std::string(1000, 't'));
  EXPECT_EQ(found[2].step, int64_t{1} << 40);
  EXPECT_EQ(found[3].tag, "\xce\xb1");
  EXPECT_TRUE(std::isinf(found[3].value));
  EXPECT_EQ(found[3].step, -1);
  EXPECT_TRUE(std::isnan(found[4].value));
}

TEST(EventWriter, WritesHistogramsWithABucketForEachValue) {
  const test::TempDir folder;
  EventWriter writer(folder.path());
  writer.add_histogram("load", std::vector{0.5, 0.25, 0.25}, 7);
  writer.flush();
  const auto all = records(test::get(writer.path()));
  const Message event = decode(all.at(1));
  EXPECT_EQ(event.numbers.at(2), 7u);
  const Message value = decode(decode(event.texts.at(5)).texts.at(1));
  EXPECT_EQ(value.texts.at(1), "load");
  const Message histogram = decode(value.texts.at(5));
  // Minimum, maximum, number, sum and sum of squares.
  const std::vector<double> wanted = {0.0, 3.0, 1.0, 1.25, 0.125 + 0.5625 + 1.5625};
  for (uint64_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(std::bit_cast<double>(histogram.numbers.at(i + 1)), wanted[i]) << i;
  }
  const auto doubles = [](std::string_view bytes) {
    std::vector<double> list;
    while (!bytes.empty()) list.push_back(take<double>(bytes));
    return list;
  };
  EXPECT_EQ(doubles(histogram.texts.at(6)), (std::vector{1.0, 2.0, 3.0}));
  EXPECT_EQ(doubles(histogram.texts.at(7)), (std::vector{0.5, 0.25, 0.25}));
}

TEST(EventWriter, WritesImages) {
  const test::TempDir folder;
  EventWriter writer(folder.path());
  const std::vector<uint8_t> pixels = {0, 50, 100, 150, 200, 250};
  writer.add_image("grey", {pixels, 2, 3, 1}, 7);
  writer.add_image("colours", {pixels, 1, 2, 3}, 8);
  EXPECT_THAT(test::failure_of([&] {
                writer.add_image("none", {{}, 0, 0, 1}, 9);
              }),
              HasSubstr("an image file has 1 to"));
  writer.flush();
  const auto all = records(test::get(writer.path()));
  ASSERT_EQ(all.size(), 3u);  // With the version.
  const auto value_of = [&](size_t record) {
    return decode(decode(decode(all.at(record)).texts.at(5)).texts.at(1));
  };
  EXPECT_EQ(decode(all[1]).numbers.at(2), 7u);
  EXPECT_EQ(value_of(1).texts.at(1), "grey");
  const Message grey = decode(value_of(1).texts.at(4)), colours = decode(value_of(2).texts.at(4));
  // Height, width and number of channels.
  EXPECT_EQ(grey.numbers, (std::map<uint64_t, uint64_t>{{1, 2}, {2, 3}, {3, 1}}));
  EXPECT_EQ(colours.numbers, (std::map<uint64_t, uint64_t>{{1, 1}, {2, 2}, {3, 3}}));
  EXPECT_THAT(
      test::decode_image(grey.texts.at(4)).pixels,
      ElementsAre(0, 0, 0, 50, 50, 50, 100, 100, 100, 150, 150, 150, 200, 200, 200, 250, 250, 250));
  EXPECT_EQ(test::decode_image(colours.texts.at(4)).pixels, pixels);
}

TEST(EventWriter, NamesItsFileAsTensorBoardExpects) {
  const test::TempDir folder;
  const EventWriter writer(folder.path());
  EXPECT_THAT(
      writer.path().filename().string(),
      MatchesRegex("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\." + std::to_string(::getpid())));
  EXPECT_TRUE(scalars(writer.path()).empty());  // the version is there at once
}

TEST(EventWriter, GivesEveryWriterItsOwnFile) {
  const test::TempDir folder;
  for (int i = 0; i < 5; ++i) EventWriter(folder.path()).add_scalar("x", i, i, 1.0);
  ASSERT_EQ(folder.names().size(), 5u);
  for (const std::string& name : folder.names()) EXPECT_EQ(scalars(folder / name).size(), 1u);
}

TEST(EventWriter, FlushesWhenItEndsAndWhenMuchIsWaiting) {
  const test::TempDir folder;
  std::optional<EventWriter> writer(folder.path());
  const auto path = writer->path();
  const auto before = std::filesystem::file_size(path);
  writer->add_scalar("x", 1, 1, 1.0);
  EXPECT_EQ(std::filesystem::file_size(path), before);
  for (int i = 2; i <= 5000; ++i) writer->add_scalar("x", i, i, 1.0);
  EXPECT_GT(std::filesystem::file_size(path), 65536u);
  writer.reset();
  const auto found = scalars(path);
  ASSERT_EQ(found.size(), 5000u);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(found[static_cast<std::size_t>(i)].step, i + 1);
}

TEST(EventWriter, LeavesNoHalfRecordWhenTheDiskIsFull) {
  const test::TempDir folder;
  EventWriter writer(folder.path());
  for (int i = 0; i < 100; ++i) writer.add_scalar("x", i, i, 1.0);
  {
    const test::FileSizeLimit limit(1000);
    EXPECT_THAT(test::failure_of([&] { writer.flush(); }),
                AllOf(HasSubstr(writer.path().string()), HasSubstr("cannot write")));
    EXPECT_TRUE(scalars(writer.path()).empty());
  }
  writer.flush();  // there is room again, and nothing was lost
  EXPECT_EQ(scalars(writer.path()).size(), 100u);
}

TEST(EventWriter, NamesAFolderThatCannotBe) {
  const test::TempDir folder;
  test::put(folder / "file", "");
  EXPECT_THAT(test::failure_of([&] { EventWriter writer(folder / "file/events"); }),
              HasSubstr((folder / "file/events").string()));
  EXPECT_THAT(test::failure_of([&] { EventWriter writer(folder / "file"); }),
              HasSubstr((folder / "file").string()));
}

}  // namespace
}  // namespace moesaic
