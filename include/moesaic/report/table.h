// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// A table for people, in plain text or Markdown. The first columns stand to the left, numbers to
/// the right. Cells are ASCII.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header, int64_t left_columns = 1);

  /// Throws Error (usage) unless there is one cell for each column.
  void add(std::vector<std::string> row);

  /// Columns padded to their widest cell and two spaces apart; no line ends in a space.
  std::string text() const;
  std::string markdown() const;
  /// Of the longest line of text().
  int64_t width() const;

 private:
  std::vector<int64_t> widths() const;

  std::vector<std::vector<std::string>> rows_;  ///< the first one is the header
  int64_t left_columns_;
};

/// 1234567 as "1,234,567".
std::string with_commas(int64_t number);

}  // namespace moesaic
