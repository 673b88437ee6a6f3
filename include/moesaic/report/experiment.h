// SPDX-License-Identifier: Apache-2.0
// Experiments: models/<family>/experiments/<name>.json, each a table or a figure that one command
// makes again.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/signal.h"
#include "moesaic/config/value.h"
#include "moesaic/train/datasets.h"

namespace moesaic {

/// `paper` runs the sizes that an experiment is meant to have; `quick` shrinks them to try it out.
enum class Scale { paper, quick };

std::string_view scale_name(Scale scale);
/// Throws Error (usage) for another name.
Scale parse_scale(std::string_view name);

struct ReproduceOptions {
  std::filesystem::path out;
  const StopSignal* stop = nullptr;  ///< polled all the time; what is finished stays
  bool progress = true;              ///< draw progress bars on standard error
  DatasetOpener open = {};
};

struct Experiment {
  std::string name, kind, description;
  Scale scale = Scale::paper;
  std::vector<std::string> overrides = {};
  Value config = {};  ///< the whole file, shrunk and overridden, for the parser of its kind
};

/// Names of the experiments that come with the program, sorted.
std::vector<std::string> experiment_names();

/// Reads an experiment by name, or the file where `name_or_file` ends in ".json". The assignments
/// of its "quick" section {"dotted.key": value, ...} apply at Scale::quick; then come `overrides`,
/// "dotted.key=value" each. Throws Error: usage for an unknown name (with the nearest one), a file
/// that is no experiment (with its line and column), and a quick scale that the experiment lacks.
Experiment load_experiment(const std::string& name_or_file, Scale scale,
                           const std::vector<std::string>& overrides = {});

}  // namespace moesaic
