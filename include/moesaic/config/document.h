// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "moesaic/config/value.h"

namespace moesaic {

/// A configuration file with the overrides given on the command line.
///
/// The text is JSON with `//` and `/* */` comments. Duplicate keys, invalid UTF-8, numbers outside
/// the range of double and nesting beyond Value::kMaxDepth are rejected. Throws Error (usage) with
/// `file:line:column`, or Error (failure) if a file cannot be read.
///
/// In a file, any object may contain {"extends": "other.json", ...}: its members are then merged
/// over the object in that file, whose path is relative to the extending file. Extended files may
/// extend further ones; cycles and missing files are rejected at the position of the name.
class Document {
 public:
  explicit Document(Value root);
  static Document from_file(const std::filesystem::path& path);
  static Document from_text(std::string_view text, const std::string& name);

  /// Applies `a.b.c=value`. The value is JSON, or else a string without quotes; it replaces the
  /// former one, and missing objects on the path are created. For a list, a part of the path is an
  /// index or the "name" of an item: `phases.0.epochs=2`, `phases.finetune.epochs=2`. Later errors
  /// in the value are located at `argument 'a.b.c=value'`.
  void set(std::string_view assignment);
  /// Sets the value at a path. The value keeps its own origin, which later errors name.
  void set(const std::string& path, const Value& value);

  const Value& root() const { return root_; }

 private:
  Value root_;
};

}  // namespace moesaic
