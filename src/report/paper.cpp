// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/paper.h"

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"

namespace moesaic {
namespace {

const Value* paper_value(const PaperValues& paper, const std::string& row,
                         const std::string& metric) {
  const auto of_row = paper.find(row);
  if (of_row == paper.end()) return nullptr;
  const auto found = of_row->second.find(metric);
  return found == of_row->second.end() ? nullptr : &found->second;
}

}  // namespace

ConfigProblem paper_problem(const PaperValues& paper, const std::vector<std::string>& rows) {
  for (const auto& [row, metrics] : paper) {
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) {
      return {fmt::format("paper names the row '{}', which there is not; {}", row,
                          did_you_mean(row, rows)),
              {"paper." + row + ":", "paper"}};
    }
    for (const auto& [metric, value] : metrics) {
      const bool list = value.kind() == Value::Kind::array;
      if (!list || value.items().size() == 1 || value.items().size() == 2) continue;
      return {
          fmt::format("what the paper has for {} of '{}' is a value, or [value, std]", metric, row),
          {"paper." + row, "paper"}};
    }
  }
  return {};
}

ConfigProblem config_problem(const PaperTable& table) {
  const size_t columns = table.initial.empty() ? table.rows.front().size() : table.initial.size();
  for (const auto& row : table.rows) {
    if (row.size() != columns) {
      return {fmt::format("every list must have {} numbers, found one of {}", columns, row.size()),
              {"rows"}};
    }
  }
  return {};
}

std::optional<PaperNumber> paper_number(const PaperValues& paper, const std::string& row,
                                        const std::string& metric) {
  const Value* value = paper_value(paper, row, metric);
  if (value == nullptr) return std::nullopt;
  const std::string name = "paper." + row + "." + metric;
  if (value->kind() != Value::Kind::array) return PaperNumber{value->as_double(name), {}};
  const Value::Array& items = value->items();
  PaperNumber number{items[0].as_double(name), {}};
  if (items.size() > 1) number.std = items[1].as_double(name);
  if (number.std && *number.std < 0.0) {
    fail_usage("{}: a standard deviation is not negative, found {}", items[1].where(), *number.std);
  }
  return number;
}

std::optional<PaperTable> paper_table(const PaperValues& paper, const std::string& row,
                                      const std::string& metric) {
  const Value* value = paper_value(paper, row, metric);
  if (value == nullptr) return std::nullopt;
  return parse<PaperTable>(*value, "paper." + row + "." + metric);
}

}  // namespace moesaic
