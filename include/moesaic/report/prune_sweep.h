// SPDX-License-Identifier: Apache-2.0
// The experiment "prune-sweep": trains a network, prunes it to several sizes by several criteria,
// recovers each, and measures accuracy and cost, with one seed or several.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/prune/keep_spec.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/paper.h"
#include "moesaic/report/throughput.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

struct ExportChoice {
  int64_t keep = 0;
  std::string criterion;
};
template <class Fields>
void describe(Fields& f, ExportChoice& c) {
  f("keep", c.keep, "experts that it has in a layer", required, at_least(1));
  f("criterion", c.criterion, "how they were chosen", required);
}

/// A choice of how many experts stay in each layer.
struct LayerChoice {
  std::string name;
  Value keep;
};
template <class Fields>
void describe(Fields& f, LayerChoice& c) {
  f("name", c.name, "name of its rows", required, not_empty);
  f("keep", c.keep,
    "what stays: {\"<block>\": count or [ids]}, or {\"count\": 4, \"whole\": [9]} and its like",
    required);
}
ConfigProblem config_problem(const LayerChoice& choice);

struct PruneSweepConfig {
  std::string name, kind, description;
  int64_t runs = 1;
  RunConfig train;
  std::string finetuned;
  std::vector<int64_t> keep, whole;
  std::vector<LayerChoice> by_layer;
  std::vector<std::string> criteria;
  std::string replace = kReplaceByNothing;
  int64_t images = 1024;
  PhaseConfig recover;
  ThroughputConfig throughput;
  std::optional<ExportChoice> exported;
  PaperValues paper;
  Value kept;
  Value quick;
  Value source;  ///< Origin in the configuration.
};
template <class Fields>
void describe(Fields& f, PruneSweepConfig& c) {
  f("name", c.name, "name of the experiment", required, not_empty);
  f("kind", c.kind, "what is done", required, one_of({"prune-sweep"}));
  f("description", c.description, "one line for lists and the report", required, not_empty);
  f("runs", c.runs, "networks that are trained and pruned, with seeds that follow each other",
    between(1, 1000));
  f("train", c.train,
    "the run that is pruned: its last phase fine-tunes what its first one, or of a single phase "
    "its init, pre-trained",
    required);
  f("finetuned", c.finetuned,
    "run or checkpoint that takes the place of training: the last phase of train says its data, "
    "train.init what criteria compare it with");
  f("keep", c.keep, "numbers of experts that stay in a layer", required, not_empty, at_least(1));
  f("whole", c.whole, "blocks whose experts all stay, whatever keep says", at_least(0));
  f("by_layer", c.by_layer, "choices of how many stay in which layer, beside those of keep");
  f("criteria", c.criteria, "what ranks the experts (moesaic list criteria)", required, not_empty);
  f("replace", c.replace, "what removed experts leave to tokens that still select them",
    one_of({kReplaceByNothing, kReplaceByMean}));
  f("images", c.images,
    "of the last phase's data, its validation split where there is one, for criteria and means "
    "that need them",
    between(1, kMaxSteps));
  f("recover", c.recover, "the phase that follows pruning, on the data of the last one", required);
  f("throughput", c.throughput, "how forward passes are timed");
  f("export", c.exported, "which recovered network of the first run becomes TorchScript");
  f("paper", c.paper, "by row and metric what the paper prints: a value, or [value, std]");
  f("kept", c.kept, "results.json of more runs, shown beside those of fewer");
  f("quick", c.quick, "settings of --scale quick, by dotted name");
}
ConfigProblem config_problem(const PruneSweepConfig& config);

/// A phase of the training runs, evaluated on the test split of its data.
struct SweepPhase {
  std::string name, data;
  int64_t images = 0;            ///< Number of images in the test split.
  std::vector<double> accuracy;  ///< Accuracy in % of each run.
};

/// How many experts the networks of one size keep.
struct SweepSize {
  std::string name;  ///< "keep4", or the name of a choice by layer; rows and folders begin with it.
  int64_t count = 0;  ///< Experts in each layer; 0 of a choice by layer.
  std::string text;   ///< "4 of 8", or "halves (4, 8)" with the experts of each layer.
};

/// A pruned network. FLOPs, parameters, bytes and speed are those after recovery; parameters, bytes
/// and speed of the first run.
struct SweepPoint {
  std::string size;  ///< Name of its SweepSize.
  std::string criterion;
  std::vector<double> accuracy, accuracy_recovered;  ///< In % of each run, and after recovery.
  int64_t parameters = 0;
  std::vector<double> flops;  ///< FLOPs per image, by the rows computed on the test split.
  double images_per_second = 0.0;
  int64_t bytes = 0;  ///< Size of the files with its weights.
};

/// The exported network, a file in the output folder.
struct SweepExport {
  ExportChoice choice;
  std::string file;
  double time = 0.0;  ///< Forward time relative to the network before export.
};

struct SweepOutcome {
  int64_t experts = 0;  ///< Experts per layer of the unpruned network.
  std::vector<SweepPhase> phases;
  /// Numbers of kept experts and choices, as configured; ahead of them the number of all experts
  /// where it is not among them, since costs are fractions of that network's.
  std::vector<SweepSize> sizes;
  std::vector<std::string> criteria;  ///< Criteria, as configured.
  std::vector<SweepPoint> points;     ///< One for each pair of these, criteria varying fastest.
  std::optional<SweepExport> exported;

  /// Returns the number of runs.
  int64_t runs() const { return static_cast<int64_t>(phases.front().accuracy.size()); }
  const SweepPoint& at(const std::string& size, const std::string& criterion) const;
};

/// Returns the name of the size that keeps a number of experts in each layer.
std::string sweep_size(int64_t keep);

/// Checks the experiment and returns its plan as text: the run that is pruned, with its recovery,
/// and the networks. Throws Error (usage) as the experiment would.
std::string plan_prune_sweep(const PruneSweepConfig& config);

/// Runs the experiment in `options.out`:
///
///     config.json             the settings of the networks in this folder
///     model.ts.pt             the exported network
///     seed<S>/train/          the run that is pruned, unless `finetuned` is
///     seed<S>/pruned/keep<N>-<criterion>/    checkpoints
///     seed<S>/keep<N>-<criterion>/    the runs that recover them; keep<N>/ of the unpruned network
///     .../<choice>.<criterion>/       the same of choices by layer
///
/// Finished parts are reused and interrupted runs resumed, so that the same call continues after an
/// interruption. Networks that keep all experts are the same for every criterion and exist once.
/// Returns false, with `outcome` incomplete, if a signal stopped it. Throws Error (usage) if `out`
/// was made with other settings.
bool run_prune_sweep(const PruneSweepConfig& config, const ReproduceOptions& options,
                     SweepOutcome& outcome);

}  // namespace moesaic
