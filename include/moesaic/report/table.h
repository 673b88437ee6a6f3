// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// A table in plain text or Markdown. The first columns are aligned left, numbers right. Cells are
/// ASCII.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header, int64_t left_columns = 1);

  /// Appends a row. Throws Error (usage) unless it has one cell per column.
  void add(std::vector<std::string> row);

  /// Returns plain text: columns padded to their widest cell, two spaces apart, lines trimmed.
  std::string text() const;
  std::string markdown() const;
  /// Returns the length of the longest line of text().
  int64_t width() const;

 private:
  std::vector<int64_t> widths() const;

  std::vector<std::vector<std::string>> rows_;  ///< The first row is the header.
  int64_t left_columns_;
};

/// Formats 1234567 as "1,234,567".
std::string with_commas(int64_t number);

}  // namespace moesaic
