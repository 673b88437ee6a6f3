// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "moesaic/report/runs.h"

namespace moesaic {

void beside_paper(ResultRow& row, const PaperValues& values) {
  const std::optional<PaperNumber> paper = paper_number(values, row.name, row.metric);
  if (!paper) return;
  row.paper = paper->value;
  row.paper_std = paper->std;
}

std::vector<ResultRow> runs_results(const RunsConfig& config,
                                    const std::vector<MeasuredRow>& rows) {
  std::vector<ResultRow> results;
  for (const MeasuredRow& row : rows) {
    for (const Metric& metric : row.metrics) {
      std::vector<double> values;
      for (const RunRecord& run : row.runs) {
        const auto found = run.final.numbers.find(metric.name);
        if (found != run.final.numbers.end()) values.push_back(found->second);
      }
      if (metric.is_table || values.empty()) continue;
      ResultRow result = row_of_runs(row.name, metric.name, std::move(values));
      result.digits = metric.digits;
      beside_paper(result, config.paper);
      results.push_back(std::move(result));
    }
  }
  for (const RatioConfig& ratio : config.ratios) {
    std::optional<ResultRow> made = ratio_row(ratio, results);
    if (!made) continue;
    beside_paper(*made, config.paper);
    results.push_back(std::move(*made));
  }
  return results;
}

}  // namespace moesaic
