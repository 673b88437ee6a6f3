// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <exception>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"

namespace moesaic {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 16;

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
constexpr int kEventWallTime = 1;
constexpr int kEventStep = 2;
constexpr int kEventFileVersion = 3;
constexpr int kEventSummary = 5;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1;
constexpr int kValueSimpleValue = 2;
constexpr int kValueImage = 4;
constexpr int kValueHistogram = 5;
// Numbers of HistogramProto: min, max, num, sum and sum_squares are 1 to 5.
constexpr int kBucketLimits = 6;
constexpr int kBuckets = 7;
// Numbers of Summary.Image: height, width and colorspace, the number of channels, are 1 to 3.
constexpr int kImageFile = 4;

enum class Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

// Returns the masked CRC of TFRecord, since a CRC of data that contain CRCs is weak.
uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8U;
}

template <class T>
void put_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, int field, Wire wire) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}

void put_number(std::string& out, int field, int64_t value) {
  put_key(out, field, Wire::varint);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_double(std::string& out, double value) {
  put_little_endian(out, std::bit_cast<uint64_t>(value));
}

std::string event_at(double wall_time) {
  std::string event;
  put_key(event, kEventWallTime, Wire::fixed64);
  put_double(event, wall_time);
  return event;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  std::string text = name.data();
  std::replace(text.begin(), text.end(), '/', '-');
  return text;
}

}  // namespace

double seconds_since_1970() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count();
}

EventWriter::EventWriter(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("{}: cannot create: {}", folder.string(), error.message());
  const double now = seconds_since_1970();
  const std::string name = fmt::format("events.out.tfevents.{:010}.{}.{}",
                                       static_cast<int64_t>(now), host_name(), ::getpid());
  // Further writers of this process within the same second get a numeric suffix.
  for (int again = 0; !fd_; ++again) {
    path_ = folder / (again == 0 ? name : fmt::format("{}.{}", name, again));
    fd_ = try_open(path_, O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
    if (!fd_ && errno != EEXIST) fail_errno(path_, "cannot create");
  }
  std::string event = event_at(now);
  put_bytes(event, kEventFileVersion, "brain.Event:2");
  append_record(event);
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

void EventWriter::add_scalar(std::string_view tag, double value, int64_t step, double wall_time) {
  std::string field;
  put_key(field, kValueSimpleValue, Wire::fixed32);
  put_little_endian(field, std::bit_cast<uint32_t>(static_cast<float>(value)));
  append_value(tag, field, step, wall_time);
}

void EventWriter::add_histogram(std::string_view tag, std::span<const double> values,
                                int64_t step) {
  // Those of a value in the middle of each bucket, weighted by what it holds.
  double total = 0.0, sum = 0.0, sum_squares = 0.0;
  std::string limits, buckets;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double middle = static_cast<double>(i) + 0.5;
    total += values[i];
    sum += values[i] * middle;
    sum_squares += values[i] * middle * middle;
    put_double(limits, middle + 0.5);
    put_double(buckets, values[i]);
  }
  std::string histogram;
  int number = 0;
  for (const double field : {0.0, static_cast<double>(values.size()), total, sum, sum_squares}) {
    put_key(histogram, ++number, Wire::fixed64);
    put_double(histogram, field);
  }
  put_bytes(histogram, kBucketLimits, limits);
  put_bytes(histogram, kBuckets, buckets);
  std::string field;
  put_bytes(field, kValueHistogram, histogram);
  append_value(tag, field, step);
}

void EventWriter::add_image(std::string_view tag, const PixelView& image, int64_t step) {
  std::string encoded;
  int number = 0;
  for (const int64_t size : {image.height, image.width, image.channels}) {
    put_number(encoded, ++number, size);
  }
  put_bytes(encoded, kImageFile, encode_png(image));
  std::string field;
  put_bytes(field, kValueImage, encoded);
  append_value(tag, field, step);
}

void EventWriter::append_value(std::string_view tag, std::string_view fields, int64_t step,
                               double wall_time) {
  std::string item;
  put_bytes(item, kValueTag, tag);
  item += fields;
  std::string summary;
  put_bytes(summary, kSummaryValue, item);
  std::string event = event_at(wall_time);
  put_number(event, kEventStep, step);
  put_bytes(event, kEventSummary, summary);
  append_record(event);
  if (buffer_.size() >= kFlushBytes) flush();
}

void EventWriter::flush() {
  if (buffer_.empty()) return;
  try {
    write_all(fd_.get(), std::as_bytes(std::span(buffer_)), path_);
  } catch (const Error&) {
    // A partial record would hide all later ones; the buffer is kept for another try.
    if (::ftruncate(fd_.get(), static_cast<off_t>(written_)) != 0) {
      log_warning("{}: cannot remove the part of a record that was written", path_.string());
    }
    throw;
  }
  written_ += buffer_.size();
  buffer_.clear();
}

void EventWriter::append_record(std::string_view event) {
  std::string length;
  put_little_endian(length, static_cast<uint64_t>(event.size()));
  buffer_ += length;
  put_little_endian(buffer_, masked_crc(length));
  buffer_ += event;
  put_little_endian(buffer_, masked_crc(event));
}

}  // namespace moesaic
