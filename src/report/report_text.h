// SPDX-License-Identifier: Apache-2.0
// Text that reports of several kinds share.
#pragma once

#include <filesystem>
#include <string>

#include "moesaic/report/experiment.h"

namespace moesaic {

/// Returns the command that reproduces the experiment, "moesaic reproduce ...".
std::string table_command(const Experiment& experiment);

/// Returns one or two sentences on what the scale means for the numbers.
std::string scale_text(const Experiment& experiment);

/// Returns a line "<what>   <value>" of a summary.
std::string summary_line(const std::string& what, const std::string& value);

}  // namespace moesaic
