// SPDX-License-Identifier: Apache-2.0
#include "report_text.h"

#include <fmt/format.h>

#include <optional>

namespace moesaic {
namespace {

std::string with_spread(const std::optional<double>& value, const std::optional<double>& spread,
                        int digits) {
  if (!value) return "-";
  std::string text = fmt::format("{:.{}f}", *value, digits);
  if (spread) text += fmt::format(" +- {:.{}f}", *spread, digits);
  return text;
}

int digits_of(const std::string& metric) {
  return metric == "entropy" ? 3 : metric == "steps" ? 0 : metric.starts_with("largest_") ? 3 : 2;
}

}  // namespace

TextTable pairs_table(const Results& results) {
  TextTable table({"row", "metric", "runs", "measured", "paper"}, 2);
  for (const ResultRow& row : results.rows) {
    const int digits = digits_of(row.metric);
    table.add({row.name, row.metric, std::to_string(row.runs),
               with_spread(row.measured, row.std, digits),
               with_spread(row.paper, row.paper_std, digits)});
  }
  return table;
}

std::string table_command(const Experiment& experiment) {
  std::string command = "moesaic reproduce " + experiment.name;
  for (const std::string& assignment : experiment.overrides) command += " " + assignment;
  return command + fmt::format(" --scale {}", scale_name(experiment.scale));
}

std::string scale_text(const Experiment& experiment) {
  if (experiment.scale == Scale::paper) return "Scale: paper.";
  return "Scale: **quick**. Sizes are shrunk to try it out: not to be held against the paper's.";
}

}  // namespace moesaic
