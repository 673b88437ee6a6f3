// SPDX-License-Identifier: Apache-2.0
// What a run-table has to tell: a table and a figure, measured beside what the paper prints.
#pragma once

#include <filesystem>
#include <string>

#include "moesaic/report/experiment.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"

namespace moesaic {

/// report.md.
std::string run_table_markdown(const Experiment& experiment, const Results& results);

/// The same in short, for a terminal; `out` is where the files are.
std::string run_table_summary(const Experiment& experiment, const Results& results,
                              const std::filesystem::path& out);

/// Test accuracy of each row with its spread, beside the paper's.
Figure run_table_figure(const Results& results);

}  // namespace moesaic
