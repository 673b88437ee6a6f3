// SPDX-License-Identifier: Apache-2.0
// The experiment "prune-sweep": trains a network, prunes it to several sizes by several criteria,
// recovers each, and measures accuracy and cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/report/experiment.h"
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

struct PruneSweepConfig {
  std::string name, kind, description;
  RunConfig train;
  std::vector<int64_t> keep;
  std::vector<std::string> criteria;
  PhaseConfig recover;
  ThroughputConfig throughput;
  ExportChoice exported;
  Value quick;
};
template <class Fields>
void describe(Fields& f, PruneSweepConfig& c) {
  f("name", c.name, "of the experiment", required, not_empty);
  f("kind", c.kind, "what is done", required, one_of({"prune-sweep"}));
  f("description", c.description, "one line for lists and the report", required, not_empty);
  f("train", c.train, "the run that is pruned: its first phase pre-trains, its last one fine-tunes",
    required);
  f("keep", c.keep, "numbers of experts that stay in a layer", required, not_empty, at_least(1));
  f("criteria", c.criteria, "what ranks the experts (moesaic list criteria)", required, not_empty);
  f("recover", c.recover, "the phase that follows pruning, on the data of the last one", required);
  f("throughput", c.throughput, "how forward passes are timed");
  f("export", c.exported, "which recovered network becomes TorchScript", required);
  f("quick", c.quick, "settings of --scale quick, by dotted name");
}
ConfigProblem config_problem(const PruneSweepConfig& config);

/// A phase of the training run, evaluated on the test split of its data.
struct SweepPhase {
  std::string name, data;
  int64_t images = 0;     ///< Number of images in the test split.
  double accuracy = 0.0;  ///< Accuracy in %.
};

/// A pruned network. FLOPs, parameters, bytes and speed are those after recovery.
struct SweepPoint {
  int64_t keep = 0;
  std::string criterion;
  double accuracy = 0.0, accuracy_recovered = 0.0;  ///< Accuracy in %, before and after recovery.
  int64_t parameters = 0;
  double flops = 0.0;  ///< FLOPs per image, by the rows computed on the test split.
  double images_per_second = 0.0;
  int64_t bytes = 0;  ///< Size of model.safetensors.
};

struct SweepOutcome {
  int64_t experts = 0;  ///< Experts per layer of the unpruned network.
  std::vector<SweepPhase> phases;
  std::vector<int64_t> keep;          ///< Numbers of kept experts, as configured.
  std::vector<std::string> criteria;  ///< Criteria, as configured.
  std::vector<SweepPoint> points;     ///< One for each pair of these, criteria varying fastest.
  ExportChoice exported;
  std::string model;         ///< File name of the exported network in the output folder.
  double export_time = 0.0;  ///< Forward time relative to the network before export.

  const SweepPoint& at(int64_t keep, const std::string& criterion) const;
};

/// Runs the experiment in `options.out`:
///
///     config.json             the settings of the networks in this folder
///     train/                  the run that is pruned
///     pruned/keep<N>-<criterion>/    checkpoints
///     keep<N>-<criterion>/    the runs that recover them; keep<N>/ of the unpruned network
///     model.ts.pt             the exported network
///
/// Finished parts are reused and interrupted runs resumed, so that the same call continues after an
/// interruption. Networks that keep all experts are the same for every criterion and exist once.
/// Returns false, with `outcome` incomplete, if a signal stopped it. Throws Error (usage) if `out`
/// was made with other settings.
bool run_prune_sweep(const PruneSweepConfig& config, const ReproduceOptions& options,
                     SweepOutcome& outcome);

}  // namespace moesaic
