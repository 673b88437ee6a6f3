// SPDX-License-Identifier: Apache-2.0
#include "report_text.h"

#include <fmt/format.h>

namespace moesaic {

std::string table_command(const Experiment& experiment) {
  std::string command = "moesaic reproduce " + experiment.name;
  for (const std::string& assignment : experiment.overrides) command += " " + assignment;
  return command + fmt::format(" --scale {}", scale_name(experiment.scale));
}

std::string scale_text(const Experiment& experiment) {
  if (experiment.scale == Scale::paper) return "Scale: paper.";
  return "Scale: **quick**. Sizes are shrunk to try it out: not to be held against the paper's.";
}

std::string summary_line(const std::string& what, const std::string& value) {
  return fmt::format("{:<9}{}\n", what, value);
}

}  // namespace moesaic
