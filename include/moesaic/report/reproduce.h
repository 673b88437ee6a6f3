// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "moesaic/report/experiment.h"
#include "moesaic/report/results.h"

namespace moesaic {

struct Reproduction {
  int signal = 0;  ///< the one that stopped it; then nothing below is filled
  Results results = {};
  std::string summary = {};  ///< for a terminal
};

/// checkpoints/<name>, or checkpoints/<name>-quick, which never mix.
std::filesystem::path default_output(const Experiment& experiment);

/// Runs an experiment and leaves results.json, report.md, figure.svg and figure.png (and figure.gp
/// and figure.tsv, which drew them; further figures are figure-2 and so on) in options.out, beside
/// what its kind leaves there. The same call goes on where an interrupted one stopped.
Reproduction reproduce(const Experiment& experiment, const ReproduceOptions& options);

}  // namespace moesaic
