// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/report/measurement.h"

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

ResultRow row_of_runs(const std::string& name, const std::string& metric,
                      std::vector<double> values) {
  const Moments over_runs = moments(values);
  ResultRow row{name, metric, over_runs.mean};
  row.runs = over_runs.n;
  if (over_runs.n == 1) return row;
  row.std = over_runs.std;
  std::sort(values.begin(), values.end());
  row.min = values.front();
  row.median = (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  row.max = values.back();
  return row;
}

const ResultRow* Results::find(std::string_view name, std::string_view metric) const {
  for (const ResultRow& row : rows) {
    if (row.name == name && row.metric == metric) return &row;
  }
  return nullptr;
}

bool Results::have_paper_values() const {
  return std::any_of(rows.begin(), rows.end(),
                     [](const ResultRow& row) { return row.paper.has_value(); });
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
                    {"min", number(row.min)},
                    {"median", number(row.median)},
                    {"max", number(row.max)},
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

std::vector<ResultRow> measured_rows(const Value& results) {
  std::vector<ResultRow> rows;
  for (const Value& item : results.at("rows").items("rows")) {
    ResultRow row;
    row.name = item.at("name").as_string("name");
    row.metric = item.at("metric").as_string("metric");
    row.measured = item.at("measured").as_double("measured");
    row.runs = item.at("runs").as_int("runs");
    if (!item.at("std").is_null()) row.std = item.at("std").as_double("std");
    rows.push_back(std::move(row));
  }
  return rows;
}

TextTable results_table(const Results& results) {
  const bool spread = std::any_of(results.rows.begin(), results.rows.end(),
                                  [](const ResultRow& row) { return row.median.has_value(); });
  std::vector<std::string> header = {"row", "metric", "n", "mean", "std"};
  if (spread) header.insert(header.end(), {"median", "min", "max"});
  const bool paper = results.have_paper_values();
  if (paper) header.insert(header.end(), {"paper", "paper std", "verdict"});
  TextTable table(header, 2);
  for (const ResultRow& row : results.rows) {
    const std::string verdict = row.verdict();
    const auto shown = [&](const std::optional<double>& value) { return cell(value, row.digits); };
    std::vector<std::string> cells = {row.name, row.metric, std::to_string(row.runs),
                                      shown(row.measured), shown(row.std)};
    if (spread) cells.insert(cells.end(), {shown(row.median), shown(row.min), shown(row.max)});
    if (paper) {
      cells.insert(cells.end(),
                   {shown(row.paper), shown(row.paper_std), verdict.empty() ? "-" : verdict});
    }
    table.add(std::move(cells));
  }
  return table;
}

}  // namespace moesaic
