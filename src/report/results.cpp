// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <fmt/format.h>

#include <cmath>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Returns the number as JSON, whole numbers without a fraction.
nlohmann::ordered_json number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (std::trunc(value) == value && std::abs(value) < kExact) return static_cast<int64_t>(value);
  return value;
}

nlohmann::ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : nlohmann::ordered_json();
}

std::string cell(const std::optional<double>& value, int digits) {
  if (!value) return "-";
  constexpr double kReadable = 1e15;
  if (!(std::abs(*value) < kReadable)) return fmt::format("{:.4g}", *value);
  return std::abs(*value) >= 1000.0 ? with_commas(std::llround(*value))
                                    : fmt::format("{:.{}f}", *value, digits);
}

}  // namespace

std::string ResultRow::verdict() const {
  if (!paper || !paper_std) return "";
  return std::abs(measured - *paper) <= *paper_std ? "inside" : "outside";
}

const ResultRow* Results::find(std::string_view name, std::string_view metric) const {
  for (const ResultRow& row : rows) {
    if (row.name == name && row.metric == metric) return &row;
  }
  return nullptr;
}

nlohmann::ordered_json to_json(const Results& results) {
  auto rows = nlohmann::ordered_json::array();
  for (const ResultRow& row : results.rows) {
    const std::string verdict = row.verdict();
    // JSON has no such number, and a table with a missing value must not pass for a result.
    if (!std::isfinite(row.measured)) {
      fail("{}: {} of '{}' is {}", results.experiment, row.metric, row.name, row.measured);
    }
    rows.push_back({{"name", row.name},
                    {"metric", row.metric},
                    {"measured", number(row.measured)},
                    {"std", number(row.std)},
                    {"runs", row.runs},
                    {"paper", number(row.paper)},
                    {"paper_std", number(row.paper_std)},
                    {"verdict", verdict.empty() ? nlohmann::ordered_json()
                                                : nlohmann::ordered_json(verdict)}});
  }
  return {{"experiment", results.experiment},
          {"scale", results.scale},
          {"rows", std::move(rows)},
          {"seconds", number(results.seconds)}};
}

TextTable results_table(const Results& results) {
  TextTable table({"row", "metric", "n", "mean", "std", "paper", "paper std", "verdict"}, 2);
  for (const ResultRow& row : results.rows) {
    const std::string verdict = row.verdict();
    table.add({row.name, row.metric, std::to_string(row.runs), cell(row.measured, row.digits),
               cell(row.std, row.digits), cell(row.paper, row.digits),
               cell(row.paper_std, row.digits), verdict.empty() ? "-" : verdict});
  }
  return table;
}

}  // namespace moesaic
