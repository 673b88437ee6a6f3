// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "moesaic/report/runs.h"

namespace moesaic {

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
      const Moments over_runs = moments(values);
      ResultRow result{row.name, metric.name, over_runs.mean};
      result.runs = over_runs.n;
      result.digits = metric.digits;
      if (over_runs.n > 1) {
        result.std = over_runs.std;
        std::sort(values.begin(), values.end());
        result.min = values.front();
        result.median = (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
        result.max = values.back();
      }
      if (const auto paper = paper_number(config, row.name, metric.name)) {
        result.paper = paper->value;
        result.paper_std = paper->std;
      }
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace moesaic
