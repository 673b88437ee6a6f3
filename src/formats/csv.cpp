// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/csv.h"

#include <cmath>
#include <limits>
#include <optional>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic::csv {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
constexpr int kEnd = -1;

bool ends_field(int byte) {
  return byte == ',' || byte == '\n' || byte == '\r' || byte == kEnd;
}

}  // namespace

Reader::Reader(const fs::path& path) : name_(path.string()), file_(path), piece_(kPieceBytes) {
  held_ = file_.read(piece_);
  const std::string_view begin(reinterpret_cast<const char*>(piece_.data()), held_);
  if (begin.starts_with("\xFF\xFE") || begin.starts_with("\xFE\xFF") ||
      begin.find('\0') != std::string_view::npos) {
    fail("{}: the file is UTF-16 or no text; save it as UTF-8", name_);
  }
  used_ = held_ - without_byte_order_mark(begin).size();
}

int Reader::peek() {
  if (used_ == held_ && held_ > 0) {
    held_ = file_.read(piece_);
    used_ = 0;
  }
  return held_ == 0 ? kEnd : piece_[used_];
}

int Reader::take() {
  const int byte = peek();
  if (byte == kEnd) return byte;
  ++used_;
  if (byte == '\n') {
    place_ = {place_.line + 1, 1};
  } else if (starts_character(static_cast<char>(byte))) {
    ++place_.column;
  }
  return byte;
}

bool Reader::next() {
  const Place begin = place_;
  bool blank = false;
  for (; columns_ > 0 && (peek() == '\n' || peek() == '\r'); blank = true) take();
  if (peek() == kEnd) return false;
  if (blank) fail("{}: the line is empty", at(begin));
  count_ = 0;
  while (read_field()) {
  }
  if (columns_ == 0) columns_ = count_;
  if (count_ < columns_) {
    fail("{}: the row has {}, the first one has {}", at(begin),
         count_text(static_cast<int64_t>(count_), "field"), columns_);
  }
  return true;
}

bool Reader::read_field() {
  if (columns_ > 0 && count_ == columns_) {
    fail("{}: the row has more than the {} of the first one", at(place_),
         count_text(static_cast<int64_t>(columns_), "field"));
  }
  if (count_ == kMaxFields) fail("{}: the row has more than {} fields", at(place_), kMaxFields);
  if (count_ == fields_.size()) fields_.emplace_back();
  Field& field = fields_[count_++];
  field.text.clear();
  field.begin = place_;
  if (peek() == '"') {
    read_quoted(field);
  } else {
    while (!ends_field(peek())) {
      if (peek() == '"') fail("{}: a quote inside a field that begins without one", at(place_));
      append(field, take());
    }
  }
  const Place end = place_;
  int byte = take();
  if (byte == '\r') {
    if (peek() != '\n') fail("{}: a carriage return without a line feed", at(end));
    byte = take();
  }
  if (!ends_field(byte)) {
    fail("{}: a field ends at its closing quote, found {} after it", at(end),
         printable(std::string(1, static_cast<char>(byte))));
  }
  return byte == ',';
}

void Reader::read_quoted(Field& field) {
  take();
  for (;;) {
    const int byte = take();
    if (byte == kEnd) fail("{}: the quote is not closed", at(field.begin));
    if (byte == '"') {
      if (peek() != '"') return;
      take();
    }
    append(field, byte);
  }
}

void Reader::append(Field& field, int byte) const {
  if (field.text.size() == kMaxFieldBytes) {
    fail("{}: the field has more than {} bytes", at(field.begin), kMaxFieldBytes);
  }
  field.text += static_cast<char>(byte);
}

float Reader::number(std::size_t field) const {
  const std::string& text = fields_.at(field).text;
  const std::optional<double> number = parsed_number<double>(text);
  if (!number || !(std::abs(*number) <= std::numeric_limits<float>::max())) {
    fail("{}: expected a finite number in decimal notation, found {}", where(field),
         text.empty() ? "an empty field" : printable(text));
  }
  return static_cast<float>(*number);
}

std::string Reader::at(const Place& place) const {
  return fmt::format("{}:{}:{}", name_, place.line, place.column);
}

}  // namespace moesaic::csv
