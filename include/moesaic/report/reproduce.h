// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "moesaic/report/experiment.h"
#include "moesaic/report/results.h"

namespace moesaic {

struct Reproduction {
  int signal = 0;  ///< Signal that stopped it; then the rest is empty.
  Results results = {};
  std::string summary = {};  ///< Text for a terminal.
};

/// Returns checkpoints/<name>, or checkpoints/<name>-quick, so that scales never mix.
std::filesystem::path default_output(const Experiment& experiment);

/// Checks an experiment without running it and returns its plan as text. Data and checkpoints that
/// are missing are reported, as dry_run() does.
std::string plan_experiment(const Experiment& experiment);

/// Runs an experiment and writes results.json, report.md, figure.svg and figure.png (with their
/// sources figure.gp and figure.tsv; further figures are figure-2 and so on) to options.out, beside
/// the files of its kind. The same call continues after an interruption.
Reproduction reproduce(const Experiment& experiment, const ReproduceOptions& options);

}  // namespace moesaic
