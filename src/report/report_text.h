// SPDX-License-Identifier: Apache-2.0
// Sentences and tables that reports of several kinds have in common.
#pragma once

#include <string>

#include "moesaic/report/experiment.h"
#include "moesaic/report/results.h"
#include "moesaic/report/table.h"

namespace moesaic {

/// Measured and the paper's in a cell each, with their spreads.
TextTable pairs_table(const Results& results);

/// "moesaic reproduce ..." that makes it again.
std::string table_command(const Experiment& experiment);

/// What the scale says about the figures, a sentence or two.
std::string scale_text(const Experiment& experiment);

}  // namespace moesaic
