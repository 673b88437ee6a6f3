// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/config/value.h"
#include "moesaic/report/table.h"

namespace moesaic {

/// A measured value and, where a paper prints it, the paper's value.
struct ResultRow {
  std::string name, metric;
  double measured = 0.0;
  std::optional<double> std = {};  ///< Standard deviation over the runs; unset for one run.
  int64_t runs = 1;
  std::optional<double> min = {}, median = {}, max = {};  ///< Over the runs; unset for one run.
  std::optional<double> paper = {}, paper_std = {};
  int digits = 2;  ///< Decimal places of values below 1000.

  /// Returns "inside" or "outside" of the paper's range, paper - paper_std to paper + paper_std;
  /// empty where the paper prints no standard deviation.
  std::string verdict() const;
};

/// Returns the row of a metric's values, one of each run: their mean and, of several, their spread.
/// There must be a value.
ResultRow row_of_runs(const std::string& name, const std::string& metric,
                      std::vector<double> values);

struct Results {
  std::string experiment, scale;
  std::vector<ResultRow> rows = {};
  double seconds = 0.0;  ///< Wall time of the command.

  /// Returns the row of this name and metric, or nullptr.
  const ResultRow* find(std::string_view name, std::string_view metric) const;
  /// Returns whether any row stands beside a paper's value.
  bool have_paper_values() const;
};

/// Returns {"experiment", "scale", "rows": [{"name", "metric", "measured", "std", "runs", "min",
/// "median", "max", "paper", "paper_std", "verdict"}], "seconds"}; unset values are null. Throws
/// Error for a value that is not finite.
nlohmann::ordered_json to_json(const Results& results);

/// Returns the rows of results.json with what was measured: means, standard deviations and numbers
/// of runs. Throws Error (usage) with the location of what is missing.
std::vector<ResultRow> measured_rows(const Value& results);

/// Returns a table of every row with n, mean and standard deviation of its runs (and median, min
/// and max, where any row has several), the paper's mean and standard deviation, and the verdict;
/// "-" for unset values.
TextTable results_table(const Results& results);

}  // namespace moesaic
