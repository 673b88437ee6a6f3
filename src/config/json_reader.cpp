// SPDX-License-Identifier: Apache-2.0
#include "json_reader.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic::config_detail {
namespace {

using Json = nlohmann::json;

/// Tracks the parser's position in the text. The parser reports its tokens in order but not their
/// positions, and between two tokens there are only blanks, comments, commas and colons.
class Cursor {
 public:
  Cursor(std::string_view text, bool comments) : text_(text), comments_(comments) {
    offset_ = text_.size() - without_byte_order_mark(text_).size();
  }

  /// Skips to the next token, but never past `limit`.
  void skip_separators(size_t limit = std::string_view::npos) {
    limit = std::min(limit, text_.size());
    while (offset_ < limit) {
      if (comments_ && begins_comment()) {
        skip_comment(limit);
      } else if (std::string_view(" \t\r\n,:").find(text_[offset_]) != std::string_view::npos) {
        step();
      } else {
        return;
      }
    }
  }

  /// Skips the token that begins here.
  void skip_token() {
    const char first = text_[offset_];
    if (first == '"') {
      step();
      while (offset_ < text_.size() && text_[offset_] != '"') step(text_[offset_] == '\\' ? 2 : 1);
      step();
    } else if (std::string_view("{}[]").find(first) != std::string_view::npos) {
      step();
    } else {
      while (offset_ < text_.size() && is_word(text_[offset_])) step();
    }
  }

  int32_t line() const { return line_; }
  int32_t column() const { return column_; }

 private:
  static bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' ||
           c == '.';
  }

  bool begins_comment() const {
    const std::string_view two = text_.substr(offset_, 2);
    return two == "//" || two == "/*";
  }

  void skip_comment(size_t limit) {
    const bool of_line = text_[offset_ + 1] == '/';  // The parser ends it at any end of a line.
    const size_t end =
        of_line ? text_.find_first_of("\n\r", offset_ + 2) : text_.find("*/", offset_ + 2);
    const size_t behind = end == std::string_view::npos ? text_.size() : end + (of_line ? 1 : 2);
    step(std::min(behind, limit) - offset_);
  }

  void step(size_t count = 1) {
    for (; count > 0 && offset_ < text_.size(); --count, ++offset_) {
      if (text_[offset_] == '\n') {
        ++line_;
        column_ = 1;
      } else if (starts_character(text_[offset_])) {
        ++column_;
      }
    }
  }

  std::string_view text_;
  bool comments_;
  size_t offset_ = 0;
  int32_t line_ = 1;
  int32_t column_ = 1;
};

/// Removes position and last token from a message: "[json.exception.parse_error.101] parse error at
/// line 1, column 2: syntax error while parsing value - invalid literal; last read: 'x'; expected
/// ']'".
std::string without_place(std::string_view what) {
  if (const size_t at = what.find(", column "); at != std::string_view::npos) {
    what.remove_prefix(std::min(what.size(), what.find(": ", at) + 2));
  } else if (const size_t bracket = what.find("] "); bracket != std::string_view::npos) {
    what.remove_prefix(bracket + 2);
  }
  std::string message(what.substr(0, what.find("; last read: ")));
  const size_t expected = what.rfind("; expected ");
  if (expected != std::string_view::npos && expected >= message.size()) {
    message += what.substr(expected);
  }
  return message;
}

/// Builds Values from the events of the parser.
class Builder : public Json::json_sax_t {
 public:
  Builder(std::string_view text, const std::string& source, const ReadOptions& options)
      : source_(std::make_shared<const std::string>(source)),
        cursor_(text, options.comments),
        lines_(options.lines) {}

  Value take() { return std::move(root_); }

  bool null() override { return add(Value(token(), nullptr)); }
  bool boolean(bool value) override { return add(Value(token(), value)); }
  bool number_integer(int64_t value) override { return add(Value(token(), value)); }
  bool number_unsigned(uint64_t value) override { return add(Value(token(), value)); }
  bool number_float(double value, const std::string&) override {
    return add(Value(token(), value));
  }
  bool string(std::string& value) override { return add(Value(token(), std::move(value))); }
  bool binary(Json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }

  bool key(std::string& name) override {
    open_.back().members.push_back({std::move(name), token(), {}});
    return true;
  }

  bool end_object() override {
    token();
    Frame frame = close();
    return add(Value(std::move(frame.origin), std::move(frame.members)));
  }
  bool end_array() override {
    token();
    Frame frame = close();
    return add(Value(std::move(frame.origin), std::move(frame.items)));
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    cursor_.skip_separators(position == 0 ? 0 : position - 1);
    fail_usage("{}: {}", here().text(), without_place(error.what()));
  }

 private:
  struct Frame {
    bool is_object = false;
    Origin origin;
    Value::Array items;
    Value::Object members;  // The last one has its key only, until its value is read.
  };

  Origin here() const {
    if (!lines_) return {source_};
    return {source_, cursor_.line(), cursor_.column()};
  }

  /// Returns the origin of the token that the parser has just read.
  Origin token() {
    cursor_.skip_separators();
    Origin origin = here();
    cursor_.skip_token();
    return origin;
  }

  void count() {
    if (++nodes_ <= kMaxDocumentNodes) return;
    fail_usage("{}: more than {} values in one document", here().text(), kMaxDocumentNodes);
  }

  bool open(bool is_object) {
    open_.push_back({is_object, token(), {}, {}});
    if (static_cast<int64_t>(open_.size()) > Value::kMaxDepth) {
      fail_usage("{}: lists and objects nest deeper than {}", open_.back().origin.text(),
                 Value::kMaxDepth);
    }
    return true;
  }

  Frame close() {
    Frame frame = std::move(open_.back());
    open_.pop_back();
    return frame;
  }

  bool add(Value value) {
    count();
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Frame& frame = open_.back(); frame.is_object) {
      frame.members.back().value = std::move(value);
    } else {
      frame.items.push_back(std::move(value));
    }
    return true;
  }

  std::shared_ptr<const std::string> source_;
  Cursor cursor_;
  bool lines_;
  std::vector<Frame> open_;
  int64_t nodes_ = 0;
  Value root_;
};

/// Returns the position of a byte, for text that is rejected before parsing.
std::string place(std::string_view text, size_t offset, const std::string& source, bool lines) {
  if (!lines) return source;
  const std::string_view before = text.substr(0, offset);
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0.
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t column = 1 + count_characters(before.substr(line_begin));
  return fmt::format("{}:{}:{}", source, line, column);
}

}  // namespace

Value read_json(std::string_view text, const std::string& source, const ReadOptions& options) {
  if (text.size() > options.max_bytes) {
    fail_usage("{}: {} bytes are more than such a document has (at most {})", source, text.size(),
               options.max_bytes);
  }
  if (const auto bad = find_invalid_utf8(text)) {
    fail_usage("{}: invalid UTF-8", place(text, *bad, source, options.lines));
  }
  // The parser would treat a NUL byte as the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_usage("{}: a NUL byte", place(text, nul, source, options.lines));
  }
  if (without_byte_order_mark(text).find_first_not_of(" \t\r\n") == std::string_view::npos) {
    fail_usage("{}: empty, not JSON", source);
  }
  Builder builder(text, source, options);
  Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json, true,
                  options.comments);
  return builder.take();
}

}  // namespace moesaic::config_detail
