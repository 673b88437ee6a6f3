// SPDX-License-Identifier: Apache-2.0
// Experiments, models/<family>/experiments/<name>.json: each is a table or a figure that one
// command reproduces.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/signal.h"
#include "moesaic/config/value.h"
#include "moesaic/train/datasets.h"

namespace moesaic {

class Processes;  // parallel/processes.h

/// Scale of an experiment: `paper` has the sizes of the paper, `quick` small ones to try it out.
enum class Scale { paper, quick };

std::string_view scale_name(Scale scale);
/// Returns the scale of this name. Throws Error (usage) for another name.
Scale parse_scale(std::string_view name);

struct ReproduceOptions {
  std::filesystem::path out;
  const StopSignal* stop = nullptr;  ///< Polled throughout; finished parts stay.
  bool progress = true;              ///< Draws progress bars on standard error.
  DatasetOpener open = {};
  /// Processes that share the runs; process 0 alone writes the results. Null: this one is alone.
  std::shared_ptr<const Processes> processes = {};
  std::string device = "cpu";  ///< Where networks are trained, measured and timed.
};

struct Experiment {
  std::string name, kind, description;
  Scale scale = Scale::paper;
  std::vector<std::string> overrides = {};
  Value config = {};  ///< The whole file with quick scale and overrides applied.
};

/// Returns the names of the experiments that come with the program, sorted.
std::vector<std::string> experiment_names();

/// Reads an experiment by name, or the file where `name_or_file` ends in ".json". The assignments
/// of its "quick" section {"dotted.key": value, ...} apply at Scale::quick; then come `overrides`,
/// "dotted.key=value" each. Throws Error (usage) for an unknown name (with the nearest one), a file
/// that is not an experiment (with line and column), and a quick scale that the experiment lacks.
Experiment load_experiment(const std::string& name_or_file, Scale scale,
                           const std::vector<std::string>& overrides = {});

}  // namespace moesaic
