// SPDX-License-Identifier: Apache-2.0
// Experiments, models/<family>/experiments/<name>.json: each is a table or a figure that one
// command reproduces.
#pragma once

#include <memory>

#include "moesaic/base/signal.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/transforms.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/results.h"
#include "moesaic/train/datasets.h"

namespace moesaic {

class ProcessMesh;  // parallel/process_mesh.h

/// Scale of an experiment: `paper` has the sizes of the paper, `quick` small ones to try it out.
enum class Scale { paper, quick };

/// Returns "paper" or "quick".
std::string_view scale_name(Scale scale);

/// Options of reproduce().
struct ReproduceOptions {
  fs::path out;
  const StopSignal* stop = nullptr;  ///< Polled throughout; finished parts stay.
  bool show_progress = true;         ///< Draws progress bars on standard error.
  DatasetOpener open = {};
  /// Processes that share the runs; process 0 alone writes the results. Null: this one is alone.
  std::shared_ptr<const ProcessMesh> processes = {};
  std::string device = "cpu";  ///< Where networks are trained, measured and timed.
};

/// An experiment as its file and the command line describe it.
struct Experiment {
  std::string name, kind, description;
  Scale scale = Scale::paper;
  std::vector<std::string> overrides = {};
  Value config = {};  ///< The whole file with quick scale and overrides applied.

  /// Returns the command that reproduces it, "moesaic reproduce ...".
  std::string command() const;
  /// Returns one or two sentences on what the scale means for the numbers.
  std::string scale_text() const;
};

/// Returns the names of the experiments that come with the program, sorted.
std::vector<std::string> experiment_names();

/// Reads an experiment by name, or the file where `name_or_file` ends in ".json". The assignments
/// of its "quick" section {"dotted.key": value, ...} apply at Scale::quick; then come `overrides`,
/// "dotted.key=value" each. Throws Error (usage) for an unknown name (with the nearest one), a file
/// that is not an experiment (with line and column), and a quick scale that the experiment lacks.
Experiment load_experiment(const std::string& name_or_file, Scale scale,
                           const std::vector<std::string>& overrides = {});

/// What a reproduction measured.
struct Reproduction {
  int signal = 0;  ///< Signal that stopped it; then the rest is empty.
  Results results = {};
  std::string summary = {};  ///< Text for a terminal.
};

/// Returns checkpoints/NAME, or checkpoints/NAME-quick, so that scales never mix.
fs::path default_output(const Experiment& experiment);

/// Checks an experiment without running it and returns its plan as text. Data and checkpoints that
/// are missing are reported, as dry_run() does.
std::string plan_experiment(const Experiment& experiment);

/// Runs an experiment and writes results.json, report.md, figure.svg and figure.png (with their
/// sources figure.gp and figure.tsv; further figures are figure-2 and so on) to options.out, beside
/// the files of its kind. A repeated call continues after an interruption.
Reproduction reproduce(const Experiment& experiment, const ReproduceOptions& options);

/// The experiment "image_grid": draws images of a dataset as a network sees them in training.
struct ImageGridConfig {
  std::string name, kind, description, data, split = "train";
  PreprocessConfig preprocess;
  AugmentConfig augment;
  std::vector<int64_t> images;
  int64_t num_columns = 8, seed = 1;
  Value quick;
};
void describe(auto& f, ImageGridConfig& c) {
  f("name", c.name, "name of the experiment", required, not_empty);
  f("kind", c.kind, "kind of the experiment", required, one_of({"image_grid"}));
  f("description", c.description, "one-line description for lists and the report", required,
    not_empty);
  f("data", c.data, "name or description of the dataset", required, not_empty);
  f("split", c.split, "split of the dataset", not_empty);
  f("preprocess", c.preprocess, "preprocessing of the images, as in a phase");
  f("augment", c.augment, "augmentation of the images, as in a phase, without mixup");
  f("images", c.images, "indices in the split of the images shown", required, not_empty,
    at_least(0));
  f("num_columns", c.num_columns, "number of images per row of the figure", between(1, 100),
    renamed_from("columns"));
  f("seed", c.seed, "seed of the augmentation");
  f("quick", c.quick, "settings of --scale quick, by dotted name; null: none");
}
ConfigProblem config_problem(const ImageGridConfig& config);

/// Returns the figure of the images, each under its class and, where there are groups, its group.
/// Throws Error (usage) for an index that the split does not have.
Figure image_grid_figure(const ImageGridConfig& config, const ReproduceOptions& options);

}  // namespace moesaic
