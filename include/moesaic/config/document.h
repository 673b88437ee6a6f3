// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "moesaic/base/error.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/config/value.h"

namespace moesaic {

/// What a document of JSON may cost. Bytes are counted before memory is taken for them.
inline constexpr uint64_t kMaxDocumentBytes = uint64_t{1} << 20;
/// Limit on a document that lists files, tensors, classes, experts or runs.
inline constexpr uint64_t kMaxListBytes = uint64_t{64} << 20;
/// Values in one document, those within others included.
inline constexpr int64_t kMaxDocumentNodes = 1'000'000;

/// A configuration file with the overrides given on the command line.
///
/// The text is JSON with `//` and `/* */` comments. Duplicate keys, invalid UTF-8, numbers outside
/// the range of double, nesting beyond Value::kMaxDepth and more than `max_bytes` or
/// kMaxDocumentNodes are rejected. Throws Error (usage) with `file:line:column`, or Error (failure)
/// if a file cannot be read or is too long.
///
/// In a file, any object may contain {"extends": "other.json", ...}: its members are then merged
/// over the object in that file, whose path is relative to the extending file. Extended files may
/// extend further ones; cycles and missing files are rejected at the position of the name.
class Document {
 public:
  /// Takes a document that was read.
  explicit Document(Value root);
  /// Reads a file and what it extends.
  static Document from_file(const fs::path& path, uint64_t max_bytes = kMaxDocumentBytes);
  /// Reads a text; `name` stands for it in messages.
  static Document from_text(std::string_view text, const std::string& name,
                            uint64_t max_bytes = kMaxDocumentBytes);

  /// Applies `a.b.c=value`. The value is JSON, or else a string without quotes; it replaces the
  /// former one, and missing objects on the path are created. For a list, a part of the path is an
  /// index or the "name" of an item: `phases.0.epochs=2`, `phases.finetune.epochs=2`. Later errors
  /// in the value are located at `argument 'a.b.c=value'`.
  void set(std::string_view assignment);
  /// Sets the value at a path. The value keeps its own origin, which later errors name.
  void set(const std::string& path, const Value& value);

  /// Returns the whole document.
  const Value& root() const { return root_; }

 private:
  Value root_;
};

/// Returns read(), which parses data that a program wrote. Faults of such data are not the user's,
/// so every Error of `read` becomes an Error (failure).
auto with_errors_as_failures(const auto& read) -> decltype(read()) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(ErrorKind::failure, error.what());
  }
}

/// Reads a document that a program wrote, without "extends". Throws Error (failure) where it cannot
/// be parsed.
Value parse_stored(std::string_view text, const std::string& name,
                   uint64_t max_bytes = kMaxDocumentBytes);
/// Reads a file as parse_stored() reads a text.
Value read_stored(const fs::path& path, uint64_t max_bytes = kMaxDocumentBytes);

/// Returns the value at a JSON pointer, null where there is none.
Json value_at(const Json& json, const std::string& pointer);

/// Returns the document of parse_stored() as JSON, or nothing where parse_stored() would throw.
std::optional<Json> find_json(std::string_view text, uint64_t max_bytes = kMaxDocumentBytes);

}  // namespace moesaic
