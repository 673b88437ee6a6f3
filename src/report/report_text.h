// SPDX-License-Identifier: Apache-2.0
// Sentences that reports of several kinds have in common.
#pragma once

#include <filesystem>
#include <string>

#include "moesaic/report/experiment.h"

namespace moesaic {

/// "moesaic reproduce ..." that makes it again.
std::string table_command(const Experiment& experiment);

/// What the scale says about the figures, a sentence or two.
std::string scale_text(const Experiment& experiment);

/// A line "<what>   <value>" of a summary.
std::string summary_line(const std::string& what, const std::string& value);

}  // namespace moesaic
