// SPDX-License-Identifier: Apache-2.0
#include "moesaic/config/document.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

struct ReadOptions {
  bool lines = true;       // Origins have line and column, not the source alone.
  bool comments = true;    // Comments, `//` and `/* */`, are allowed.
  bool is_stored = false;  // See Origin::Source.
  uint64_t max_bytes = kMaxDocumentBytes;
};

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
      const std::string_view two = text_.substr(offset_, 2);
      if (comments_ && (two == "//" || two == "/*")) {
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
      constexpr std::string_view kWord = "0123456789abcdefghijklmnopqrstuvwxyzE+-.";
      step(std::min(text_.find_first_not_of(kWord, offset_), text_.size()) - offset_);
    }
  }

  int32_t line() const { return line_; }
  int32_t column() const { return column_; }

 private:
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
  int32_t line_ = 1, column_ = 1;
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
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, const std::string& source, const ReadOptions& options)
      : source_(std::make_shared<const Origin::Source>(Origin::Source{source, options.is_stored})),
        text_(text),
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
  bool binary(nlohmann::json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }

  bool key(std::string& name) override {
    open_.back().members.push_back({std::move(name), token(), {}});
    return true;
  }

  bool end_object() override {
    Frame frame = close();
    return add(Value(std::move(frame.origin), std::move(frame.members)));
  }
  bool end_array() override {
    Frame frame = close();
    return add(Value(std::move(frame.origin), std::move(frame.items)));
  }

  bool parse_error(size_t position, const std::string& last,
                   const nlohmann::json::exception& error) override {
    cursor_.skip_separators(position == 0 ? 0 : position - 1);
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow && !open_.empty() && open_.back().is_object) {
      fail_usage("{}: '{}' must be {}, found {}", here().text(), open_.back().members.back().key,
                 kRangeOfNumbers, one_line(last));
    }
    std::string_view before = text_.substr(0, position);
    const std::string message = without_place(error.what());
    const bool closes = (before.ends_with('}') || before.ends_with(']')) &&
                        message.find("unexpected '") != message.npos;  // Not within a string.
    before = before.substr(0, before.find_last_not_of(" \t\r\n", before.size() - 2) + 1);
    fail_usage("{}: {}{}", here().text(), message,
               closes && before.ends_with(',') ? "; leave out the comma before it" : "");
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

  bool open(bool is_object) {
    open_.push_back({is_object, token(), {}, {}});
    if (static_cast<int64_t>(open_.size()) > Value::kMaxDepth) {
      fail_usage("{}: lists and objects nest deeper than {}", open_.back().origin.text(),
                 Value::kMaxDepth);
    }
    return true;
  }

  Frame close() {
    token();
    Frame frame = std::move(open_.back());
    open_.pop_back();
    return frame;
  }

  bool add(Value value) {
    if (++nodes_ > kMaxDocumentNodes) {
      fail_usage("{}: more than {} values in one document", here().text(), kMaxDocumentNodes);
    }
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Frame& frame = open_.back(); frame.is_object) {
      frame.members.back().value = std::move(value);
    } else {
      frame.items.push_back(std::move(value));
    }
    return true;
  }

  std::shared_ptr<const Origin::Source> source_;
  std::string_view text_;
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

/// Parses JSON text; all other readers of JSON, but that of safetensors' headers, call it. Time and
/// memory grow with the length of the text. Throws Error (usage) with the position for syntax
/// errors, duplicate keys, invalid UTF-8, NUL bytes, numbers beyond double's range, nesting beyond
/// Value::kMaxDepth, and more than kMaxDocumentNodes values.
Value read_json(std::string_view text, const std::string& source, const ReadOptions& options = {}) {
  if (text.size() > options.max_bytes) {
    fail_usage("{}: {} bytes are more than a JSON document has (at most {})", source, text.size(),
               options.max_bytes);
  }
  if (const auto bad = find_invalid_utf8(text)) {
    fail_usage("{}: invalid UTF-8", place(text, *bad, source, options.lines));
  }
  // The parser would treat a NUL byte as the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_usage("{}: the text holds a NUL byte; remove it", place(text, nul, source, options.lines));
  }
  if (without_byte_order_mark(text).find_first_not_of(" \t\r\n") == std::string_view::npos) {
    fail_usage("{}: the text is empty, expected JSON", source);
  }
  Builder builder(text, source, options);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder,
                            nlohmann::json::input_format_t::json, true, options.comments);
  return builder.take();
}

using Path = std::span<const std::string>;

std::vector<std::string> checked_path(std::string_view text, const std::string& where) {
  std::vector<std::string> path = split(text, '.');
  if (std::find(path.begin(), path.end(), "") != path.end()) {
    fail_usage("{}: expected key.path=value, found an empty name in the path", where);
  }
  if (static_cast<int64_t>(path.size()) > Value::kMaxDepth) {
    fail_usage("{}: the path is deeper than {}", where, Value::kMaxDepth);
  }
  return path;
}

/// Parses JSON, or else a string without quotes. Text that begins like a JSON list, object or
/// string must be one, so that a typo does not turn it into a string.
Value read_argument(std::string_view text, const std::string& where) {
  const ReadOptions options{.lines = false, .comments = false};
  const bool is_json = !text.empty() && std::string_view("{[\"").find(text.front()) != text.npos;
  const bool is_of_words = text.find_first_of("\"{") == text.npos && text.ends_with(']') &&
                           text.find_first_of("abcdfghijklmnopqrstuvwxyz") != text.npos;
  if (is_json && is_of_words && !nlohmann::json::accept(text)) {
    fail_usage("{}: no JSON; texts in a list need quotes, as in '[\"a\", \"b\"]'", where);
  }
  if (is_json) return read_json(text, where, options);
  if (find_invalid_utf8(text)) fail_usage("{}: invalid UTF-8", where);
  if (!nlohmann::json::accept(text)) {
    return Value(Origin{std::make_shared<const Origin::Source>(Origin::Source{where})},
                 std::string(text));
  }
  return read_json(text, where, options);
}

/// Replaces the value at a path by copying the values along it.
class Override {
 public:
  Override(const std::string& where, Value value) : where_(where), value_(std::move(value)) {}

  Value apply(const Value* target, const std::string& walked, Path path) const {
    if (path.empty()) return value_;
    if (target == nullptr || target->is_null()) {
      const Value empty(value_.origin(), Value::Object{});
      return empty.with(path.front(), apply(nullptr, "", path.subspan(1)));
    }
    const std::string here = walked.empty() ? path.front() : walked + "." + path.front();
    if (target->kind() == Value::Kind::object) {
      return target->with(path.front(), apply(target->find(path.front()), here, path.subspan(1)));
    }
    if (target->kind() == Value::Kind::array) {
      const size_t index = find_item(*target, walked, path);
      return target->with(index, apply(&target->items()[index], here, path.subspan(1)));
    }
    fail_usage("{}: '{}' is {} and holds no '{}'", where_, walked, target->described(),
               path.front());
  }

 private:
  /// Returns the index of the item given by index or by "name".
  size_t find_item(const Value& list, const std::string& walked, Path path) const {
    const std::string& part = path.front();
    const Value::Array& items = list.items();
    const auto index = parsed_number<size_t>(part);
    if (index && *index < items.size()) return *index;
    std::vector<std::string> names;
    for (size_t i = 0; i < items.size(); ++i) {
      const Value* name = items[i].find("name");
      if (name == nullptr || name->kind() != Value::Kind::string) continue;
      if (name->as_string() == part) return i;
      names.push_back(name->as_string());
    }
    std::string hint;
    if (!names.empty()) {
      // A name stands in place of a number, or is missing before the setting of an item.
      const bool number = part.find_first_not_of("-0123456789") == std::string::npos;
      hint = "; " + did_you_mean(number ? "" : part, names);
      if (hint.starts_with("; choose")) {
        std::vector<std::string> example = {walked, names.front()};
        example.insert(example.end(), path.begin() + (number ? 1 : 0), path.end());
        hint += fmt::format(", e.g. {}", fmt::join(example, "."));
      }
    }
    fail_usage("{}: '{}' holds {} and none is '{}'{}", where_, walked,
               count_text(static_cast<int64_t>(items.size()), "item"), part, hint);
  }

  const std::string& where_;
  Value value_;
};

constexpr const char* kExtends = "extends";
constexpr int64_t kMaxExtends = 64;  // In one document, nested ones included.

/// Returns a canonical path of a file, so that different spellings compare equal.
fs::path identity(const fs::path& path) {
  std::error_code ignored;
  const fs::path found = fs::weakly_canonical(path, ignored);
  return found.empty() ? path : found;
}

/// Returns which file may be meant, named as `extends` names it: from the extending file's folder.
std::string file_instead(const fs::path& folder, const fs::path& path) {
  std::string hint = nearest_sibling(path);
  const std::string start = "; did you mean '", outer = (folder / "").string();
  if (hint.starts_with(start + outer)) hint.erase(start.size(), outer.size());
  return hint;
}

/// Reads files of JSON and resolves a chain of extended documents, the innermost last: every object
/// with {"extends": "other.json", ...} becomes the object of that file with its own members merged
/// over it, each part with its own origin. Limits are those of all documents together, since one
/// that is small may be extended many times.
class Extension {
 public:
  explicit Extension(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  Value read(const fs::path& path, int64_t depth) {
    chain_.push_back(path);
    const std::string text = read_text(path, max_bytes_, "a configuration");
    bytes_ += text.size();
    if (bytes_ > max_bytes_) {
      fail_usage("{}: the configuration and what it extends have more than {} bytes",
                 chain_.front().string(), max_bytes_);
    }
    // A run's own configuration is what a program wrote.
    const ReadOptions options = {.is_stored = path.filename() == "config.json",
                                 .max_bytes = max_bytes_};
    Value whole = resolved(read_json(text, path.string(), options), depth);
    chain_.pop_back();
    return whole;
  }

 private:
  Value resolved(const Value& value, int64_t depth) {
    if (++nodes_ > kMaxDocumentNodes) {
      fail_usage("{}: more than {} values in one configuration", value.where(), kMaxDocumentNodes);
    }
    if (depth > Value::kMaxDepth) {
      fail_usage("{}: lists and objects nest deeper than {}", value.where(), Value::kMaxDepth);
    }
    if (value.kind() == Value::Kind::array) {
      Value::Array items;
      for (const Value& item : value.items()) items.push_back(resolved(item, depth + 1));
      return Value(value.origin(), std::move(items));
    }
    if (!value.is_object()) return value;
    Value::Object members;
    for (const Value::Member& member : value.members()) {
      if (member.key == kExtends) continue;
      members.push_back({member.key, member.origin, resolved(member.value, depth + 1)});
    }
    const Value own(value.origin(), std::move(members));
    const Value* name = value.find(kExtends);
    return name == nullptr ? own : extended_file(*name, depth).merged(own);
  }

  Value extended_file(const Value& name, int64_t depth) {
    const fs::path path = chain_.back().parent_path() / name.as_string(kExtends);
    if (!fs::exists(status_of(path))) {
      fail_usage("{}: extends '{}': no such file{}", name.where(), path.string(),
                 file_instead(chain_.back().parent_path(), path));
    }
    check_no_circle(name, path);
    if (++extends_ > kMaxExtends) {
      fail_usage("{}: more than {} 'extends' in one configuration", name.where(), kMaxExtends);
    }
    Value base = read(path, depth);
    if (base.is_object()) return base;
    fail_usage("{}: extends '{}', which is {}, not an object", name.where(), path.string(),
               base.described());
  }

  void check_no_circle(const Value& name, const fs::path& path) const {
    const auto first = std::find_if(chain_.begin(), chain_.end(), [&](const fs::path& outer) {
      return identity(outer) == identity(path);
    });
    if (first == chain_.end()) return;
    std::string circle;
    for (auto file = first; file != chain_.end(); ++file) {
      circle += file->filename().string() + " -> ";
    }
    fail_usage("{}: 'extends' is circular: {}{}", name.where(), circle, path.filename().string());
  }

  uint64_t max_bytes_, bytes_ = 0;
  std::vector<fs::path> chain_;
  int64_t extends_ = 0, nodes_ = 0;
};

}  // namespace

Document::Document(Value root) : root_(std::move(root)) {}

Document Document::from_file(const fs::path& path, uint64_t max_bytes) {
  return Document(Extension(max_bytes).read(path, 0));
}

Document Document::from_text(std::string_view text, const std::string& name, uint64_t max_bytes) {
  return Document(read_json(text, name, {.max_bytes = max_bytes}));
}

void Document::set(std::string_view assignment) {
  const std::string where = "argument '" + one_line(assignment) + "'";
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) fail_usage("{}: expected key.path=value", where);
  const std::vector<std::string> path = checked_path(assignment.substr(0, equals), where);
  root_.members();
  const Value value = read_argument(assignment.substr(equals + 1), where);
  root_ = Override(where, value).apply(&root_, "", path);
}

void Document::set(const std::string& path, const Value& value) {
  const std::string where = value.where();
  const std::vector<std::string> names = checked_path(path, where);
  root_.members();
  root_ = Override(where, value).apply(&root_, "", names);
}

Value parse_stored(std::string_view text, const std::string& name, uint64_t max_bytes) {
  return with_errors_as_failures(
      [&] { return read_json(text, name, {.is_stored = true, .max_bytes = max_bytes}); });
}

Value read_stored(const fs::path& path, uint64_t max_bytes) {
  return parse_stored(read_text(path, max_bytes, "a JSON document"), path.string(), max_bytes);
}

Json value_at(const Json& json, const std::string& pointer) {
  const Json::json_pointer place(pointer);
  return json.contains(place) ? json.at(place) : Json();
}

std::optional<Json> find_json(std::string_view text, uint64_t max_bytes) {
  try {
    return parse_stored(text, "", max_bytes).to_json();
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace moesaic
