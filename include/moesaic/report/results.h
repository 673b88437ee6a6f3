// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/report/table.h"

namespace moesaic {

/// One measured number and, where a paper prints it, the paper's.
struct ResultRow {
  std::string name, metric;
  double measured = 0.0;
  std::optional<double> std = {};  ///< over the runs; absent for one run
  int64_t runs = 1;
  std::optional<double> paper = {}, paper_std = {};
  int digits = 2;  ///< that are shown after the point of numbers below 1000

  /// "inside" or "outside" of what the paper prints, paper - paper_std to paper + paper_std; empty
  /// where it prints no spread.
  std::string verdict() const;
};

struct Results {
  std::string experiment, scale;
  std::vector<ResultRow> rows = {};
  double seconds = 0.0;  ///< that the command took

  /// nullptr where there is none.
  const ResultRow* find(std::string_view name, std::string_view metric) const;
};

/// {"experiment", "scale", "rows": [{"name", "metric", "measured", "std", "runs", "paper",
/// "paper_std", "verdict"}], "seconds"}; what is absent is null. Throws Error for a number that is
/// not finite.
nlohmann::ordered_json to_json(const Results& results);

/// Every row with n, mean and standard deviation of its runs, the paper's value and spread, and the
/// verdict; "-" for what is absent.
TextTable results_table(const Results& results);

}  // namespace moesaic
