// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/report/results.h"

namespace moesaic {
namespace {

/// Returns the cells of a row, padded to the widths of their columns.
std::vector<std::string> padded(std::vector<std::string> row, const std::vector<int64_t>& widths,
                                int64_t left_columns) {
  for (size_t i = 0; i < row.size(); ++i) {
    const bool left = static_cast<int64_t>(i) < left_columns;
    row[i] = fmt::format(fmt::runtime(left ? "{:<{}}" : "{:>{}}"), row[i], widths[i]);
  }
  return row;
}

}  // namespace

TextTable::TextTable(std::vector<std::string> header, int64_t left_columns)
    : rows_{std::move(header)}, left_columns_(left_columns) {}

void TextTable::add(std::vector<std::string> row) {
  if (row.size() != rows_.front().size()) {
    fail_usage("a table of {} columns got a row of {}", rows_.front().size(), row.size());
  }
  rows_.push_back(std::move(row));
}

std::vector<int64_t> TextTable::widths() const {
  std::vector<int64_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], static_cast<int64_t>(row[i].size()));
    }
  }
  return widths;
}

std::string TextTable::text() const {
  const std::vector<int64_t> columns = widths();
  std::string text;
  for (const auto& row : rows_) {
    std::string line = fmt::format("{}", fmt::join(padded(row, columns, left_columns_), "  "));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string TextTable::markdown() const {
  const std::vector<int64_t> columns = widths();
  std::string text, rule;
  for (size_t i = 0; i < columns.size(); ++i) {
    const bool left = static_cast<int64_t>(i) < left_columns_;
    rule += fmt::format("|{:-<{}}{}", "", columns[i] + 1, left ? '-' : ':');
  }
  for (const auto& row : rows_) {
    text += fmt::format("| {} |\n", fmt::join(padded(row, columns, left_columns_), " | "));
    if (&row == &rows_.front()) text += fmt::format("{}|\n", rule);
  }
  return text;
}

std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  const size_t first = number < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace moesaic
