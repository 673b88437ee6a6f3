// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// One measured number and, where a paper prints it, the paper's.
struct ResultRow {
  std::string name, metric;
  double measured = 0.0;
  std::optional<double> std = {};  ///< over the runs; absent for one run
  int64_t runs = 1;
  std::optional<double> paper = {}, paper_std = {};
};

struct Results {
  std::string experiment, scale;
  std::vector<ResultRow> rows = {};
  double seconds = 0.0;  ///< that the command took

  /// nullptr where there is none.
  const ResultRow* find(std::string_view name, std::string_view metric) const;
};

/// {"experiment", "scale", "rows": [{"name", "metric", "measured", "std", "runs", "paper",
/// "paper_std"}], "seconds"}; what is absent is null. Throws Error for a number that is not finite.
nlohmann::ordered_json to_json(const Results& results);

/// Every row as a Markdown table, the paper's value beside the measured one; "-" where the paper
/// has none.
std::string results_markdown(const Results& results);

}  // namespace moesaic
