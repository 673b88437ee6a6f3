// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "moesaic/config/value.h"

namespace moesaic {

/// A configuration file and the overrides given on the command line.
//
/// The text is JSON with `//` and `/* */` comments. Duplicate keys, invalid UTF-8, numbers beyond
/// double's range and nesting beyond Value::kMaxDepth are refused. All errors are Error(usage) with
/// `file:line:column`, except that a file that cannot be read is Error(failure).
///
/// In a file any object may say {"extends": "other.json", ...}: it is then the object of that file,
/// whose name is relative to the one that says it, with its own members merged over it. What it
/// extends may extend further files; circles and missing files are refused at the place of the
/// name.
class Document {
 public:
  explicit Document(Value root);
  static Document from_file(const std::filesystem::path& path);
  static Document from_text(std::string_view text, const std::string& name);

  /// Applies `a.b.c=value`. The value is JSON, or else a string without quotes; it replaces what
  /// was there, and objects on the way are made where missing. In a list a part of the path is an
  /// index, or the "name" of an item: `phases.0.epochs=2`, `phases.finetune.epochs=2`. What is set
  /// says `argument 'a.b.c=value'` in later errors.
  void set(std::string_view assignment);
  /// The same with a value that keeps its own place, which later errors say.
  void set(const std::string& path, const Value& value);

  const Value& root() const { return root_; }

 private:
  Value root_;
};

}  // namespace moesaic
