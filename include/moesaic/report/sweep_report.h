// SPDX-License-Identifier: Apache-2.0
// Rows, tables and the figure of the experiment "prune-sweep".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/prune_sweep.h"
#include "moesaic/report/results.h"

namespace moesaic {

/// Remaining cost in % of the whole network's, the one with the most parameters.
struct WorkFraction {
  double parameters = 0.0;
  double flops = 0.0;
  double time = 0.0;  ///< Fraction of the time of a forward pass.
};

/// Returns one element for each size, in their order.
std::vector<WorkFraction> work_fractions(const SweepOutcome& outcome, const std::string& criterion);

/// Returns what the network that these are fractions of keeps: "8 experts", or a choice's text.
std::string largest_text(const SweepOutcome& outcome, const std::string& criterion);

/// Returns the name of a pruned network's row, "keep<N>/<criterion>" or "<choice>/<criterion>".
std::string sweep_row(const std::string& size, const std::string& criterion);

/// Returns the metrics of a pruned network's row, or of a phase's.
const std::vector<std::string>& sweep_metrics(bool of_network);

/// Returns rows "<phase>" with test_accuracy, and sweep_row() with accuracy, accuracy_recovered and
/// what they lost against fine-tuning (of each run, in points), parameters, flops,
/// images_per_second and bytes, and what of parameters, FLOPs and time the largest network of the
/// sweep has more (in %).
std::vector<ResultRow> sweep_rows(const SweepOutcome& outcome);

/// Returns the text of report.md: the tables, the figure, and every row beside the paper's value.
/// Beside one run stand the rows of `kept`, of more.
std::string sweep_markdown(const Experiment& experiment, const SweepOutcome& outcome,
                           const Results& results, const std::vector<ResultRow>& kept = {});

/// Returns a summary for a terminal of 100 columns, likewise; `out` is the folder of the files.
std::string sweep_summary(const Experiment& experiment, const SweepOutcome& outcome,
                          const Results& results, const std::filesystem::path& out,
                          const std::vector<ResultRow>& kept = {});

/// Returns two panels over the fraction of pruned parameters: accuracy without and with recovery
/// for each criterion, with the standard deviation over the runs as error bars; FLOPs and forward
/// time of the first criterion. Numbers of experts are lines, choices by layer points beside them.
Figure sweep_figure(const SweepOutcome& outcome);

}  // namespace moesaic
