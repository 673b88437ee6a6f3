// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <fmt/format.h>

#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/report/table.h"

namespace moesaic {
namespace {

/// Whole numbers are written without a fraction.
nlohmann::ordered_json number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (std::trunc(value) == value && std::abs(value) < kExact) return static_cast<int64_t>(value);
  return value;
}

nlohmann::ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : nlohmann::ordered_json();
}

std::string cell(double value) {
  if (std::trunc(value) == value && std::abs(value) >= 1000.0) {
    return with_commas(static_cast<int64_t>(value));
  }
  return std::abs(value) >= 1000.0 ? with_commas(std::llround(value))
                                   : fmt::format("{:.2f}", value);
}

std::string cell(const std::optional<double>& value) {
  return value ? cell(*value) : "-";
}

}  // namespace

const ResultRow* Results::find(std::string_view name, std::string_view metric) const {
  for (const ResultRow& row : rows) {
    if (row.name == name && row.metric == metric) return &row;
  }
  return nullptr;
}

nlohmann::ordered_json to_json(const Results& results) {
  auto rows = nlohmann::ordered_json::array();
  for (const ResultRow& row : results.rows) {
    // JSON has no such number, and a table with a hole in it should not pass for a result.
    if (!std::isfinite(row.measured)) {
      fail("{}: {} of '{}' is {}", results.experiment, row.metric, row.name, row.measured);
    }
    rows.push_back({{"name", row.name},
                    {"metric", row.metric},
                    {"measured", number(row.measured)},
                    {"std", number(row.std)},
                    {"runs", row.runs},
                    {"paper", number(row.paper)},
                    {"paper_std", number(row.paper_std)}});
  }
  return {{"experiment", results.experiment},
          {"scale", results.scale},
          {"rows", std::move(rows)},
          {"seconds", number(results.seconds)}};
}

std::string results_markdown(const Results& results) {
  TextTable table({"name", "metric", "measured", "std", "runs", "paper", "paper std"}, 2);
  for (const ResultRow& row : results.rows) {
    table.add({row.name, row.metric, cell(row.measured), cell(row.std), std::to_string(row.runs),
               cell(row.paper), cell(row.paper_std)});
  }
  return table.markdown();
}

}  // namespace moesaic
