// SPDX-License-Identifier: Apache-2.0
// Tables and figures of the experiment "runs", and of its rows that are pruned networks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"
#include "moesaic/report/runs.h"

namespace moesaic {

/// Returns the text of report.md.
std::string runs_markdown(const Experiment& experiment, const RunsConfig& config,
                          const std::vector<MeasuredRow>& rows, const Results& results);

/// Returns a summary for a terminal; `out` is the folder of the files.
std::string runs_summary(const Experiment& experiment, const RunsConfig& config,
                         const std::vector<MeasuredRow>& rows, const Results& results,
                         const std::filesystem::path& out);

/// Returns one figure for each plot of the experiment, in order.
std::vector<Figure> runs_figures(const RunsConfig& config, const std::vector<MeasuredRow>& rows,
                                 const Results& results);

/// Returns "figure", "figure-2", ...
std::string figure_stem(size_t index);

/// Returns a line "<what>   <value>" of a summary.
std::string summary_line(const std::string& what, const std::string& value);
/// Returns the lines of a summary that name so many figures, after `more` the other files.
std::string files_summary(const std::filesystem::path& out, size_t figures,
                          const std::string& more = "");

/// Returns the value of a network's row. Throws Error where the results have none.
double sweep_value(const Results& results, const std::string& row, const std::string& metric);

/// Returns what the network keeps that costs are fractions of, the one with the most parameters:
/// "8 experts", or a choice's text.
std::string largest_text(const SweepPlan& plan, const Results& results,
                         const std::string& criterion);

/// Returns the results that were kept, `config.kept`, if this experiment's networks are made as
/// theirs were; without rows else.
Results kept_results(const Experiment& experiment, const SweepConfig& config);

/// Returns the text of report.md: the tables, the figure, and every row beside the paper's value.
/// Beside one run stand the rows of `kept`, of more.
std::string sweep_markdown(const Experiment& experiment, const SweepPlan& plan,
                           const Results& results, const Results& kept = {});

/// Returns a summary for a terminal of 100 columns, likewise; `out` is the folder of the files.
std::string sweep_summary(const Experiment& experiment, const SweepPlan& plan,
                          const Results& results, const std::filesystem::path& out,
                          const Results& kept = {});

/// Returns two panels over the fraction of pruned parameters: accuracy without and with recovery
/// for each criterion, with the standard deviation over the runs as error bars; FLOPs and forward
/// time of the first criterion. Numbers of experts are lines, choices by layer points beside them.
Figure sweep_figure(const SweepPlan& plan, const Results& results);

}  // namespace moesaic
