// SPDX-License-Identifier: Apache-2.0
// Rows of the experiment "runs" that are pruned networks: what its run trains is pruned to several
// sizes by several criteria, and each network is recovered, measured and timed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/prune/criteria.h"
#include "moesaic/prune/plan.h"
#include "moesaic/report/measurement.h"
#include "moesaic/report/throughput.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

struct RunsConfig;  // report/runs.h

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

/// Settings of a RunsConfig, beside its other ones.
struct SweepConfig {
  std::vector<int64_t> keep, whole;
  std::vector<LayerChoice> by_layer;
  std::vector<std::string> criteria;
  std::string replace = kReplaceByNothing;
  int64_t images = 1024;
  std::string finetuned;
  std::optional<PhaseConfig> recover;
  ThroughputConfig throughput;
  std::optional<ExportChoice> exported;
  Value kept;

  bool is_given() const { return !keep.empty(); }
};
template <class Fields>
void describe(Fields& f, SweepConfig& c) {
  f("keep", c.keep, "numbers of experts that stay in a layer of what train makes: a row for each",
    not_empty, at_least(1));
  f("whole", c.whole, "blocks whose experts all stay, whatever keep says", at_least(0));
  f("by_layer", c.by_layer, "choices of how many stay in which layer, beside those of keep");
  f("criteria", c.criteria, "what ranks the experts (moesaic list criteria)", not_empty,
    one_of(criterion_names()));
  f("replace", c.replace, "what removed experts leave to tokens that still select them",
    one_of({kReplaceByNothing, kReplaceByMean}));
  f("images", c.images,
    "number of images for criteria and means that need them, from the last phase's validation "
    "split, or its training data where there is none",
    between(1, kMaxSteps));
  f("finetuned", c.finetuned,
    "run or checkpoint that takes the place of training: the last phase of train says its data, "
    "train.init what criteria compare it with");
  f("recover", c.recover, "the phase that follows pruning, on the data of the last one");
  f("throughput", c.throughput, "how forward passes are timed");
  f("export", c.exported, "which recovered network of the first run becomes TorchScript");
  f("kept", c.kept, "results.json of more runs, shown beside those of fewer");
}

/// A phase of the training runs, evaluated on the test split of its data.
struct SweepPhase {
  std::string name, data;
  int64_t images = 0;  ///< Number of images in the test split.
};

/// How many experts the networks of one size keep.
struct SweepSize {
  std::string name;  ///< "keep4", or the name of a choice by layer; rows and folders begin with it.
  int64_t count = 0;  ///< Experts in each layer; 0 of a choice by layer.
  std::string text;   ///< "4 of 8", or "halves (4, 8)" with the experts of each layer.
};

/// What a sweep makes, for its tables and its figure.
struct SweepPlan {
  int64_t experts = 0;  ///< Experts per layer of the unpruned network.
  std::vector<SweepPhase> phases;
  /// Numbers of kept experts and choices, as configured; ahead of them the number of all experts
  /// where it is not among them, since costs are fractions of that network's.
  std::vector<SweepSize> sizes;
  std::vector<std::string> criteria;  ///< As configured.
  std::optional<ExportChoice> exported;
};

/// Returns what the sweep of this experiment makes; `rows` are those that it measured, if any.
/// Throws Error (usage) for a size that its network cannot have.
SweepPlan sweep_plan(const RunsConfig& config, const std::vector<MeasuredRow>& rows = {});

/// Returns the name of the size that keeps a number of experts in each layer.
std::string sweep_size(int64_t keep);

/// Returns the name of a pruned network's row, "keep<N>/<criterion>" or "<choice>/<criterion>".
std::string sweep_row(const std::string& size, const std::string& criterion);

/// Returns the metrics of a pruned network's row, or of a phase's.
const std::vector<Metric>& sweep_metrics(bool of_network);

/// The file of the exported network in the experiment's folder.
inline constexpr const char* kSweepModel = "model.ts.pt";

/// Adds to the rows of networks what each run lost against fine-tuning, in points, and to those of
/// the first run what the network with the most parameters has more of parameters, FLOPs and time
/// of a forward pass, in %.
void add_savings(const SweepPlan& plan, std::vector<MeasuredRow>& rows);

}  // namespace moesaic
