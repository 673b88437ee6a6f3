// SPDX-License-Identifier: Apache-2.0
// The experiment "prune-sweep": train, prune to several sizes by several criteria, recover each,
// and measure what is lost and what is saved.
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

/// A phase of the training run, measured on the test split of its data.
struct SweepPhase {
  std::string name, data;
  int64_t images = 0;     ///< in the test split
  double accuracy = 0.0;  ///< %
};

/// A pruned network. FLOPs, parameters, bytes and speed are those of the recovered one.
struct SweepPoint {
  int64_t keep = 0;
  std::string criterion;
  double accuracy = 0.0, accuracy_recovered = 0.0;  ///< %
  int64_t parameters = 0;
  double flops = 0.0;  ///< an image, by the rows that the test split's routing really computed
  double images_per_second = 0.0;
  int64_t bytes = 0;  ///< of model.safetensors
};

struct SweepOutcome {
  int64_t experts = 0;  ///< in a layer of the unpruned network
  std::vector<SweepPhase> phases;
  std::vector<int64_t> keep;          ///< as configured
  std::vector<std::string> criteria;  ///< as configured
  std::vector<SweepPoint> points;     ///< one for each pair of these, criteria inside
  ExportChoice exported;
  std::string model;         ///< file name of the exported network in the output folder
  double export_time = 0.0;  ///< its forward time over that of the network it was made of

  const SweepPoint& at(int64_t keep, const std::string& criterion) const;
};

/// Runs the experiment in `options.out`:
///
///     config.json             what the networks in here were made with
///     train/                  the run that is pruned
///     pruned/keep<N>-<criterion>/    checkpoints
///     keep<N>-<criterion>/    the runs that recover them; keep<N>/ of the unpruned network
///     model.ts.pt             the exported network
///
/// What is finished is used again and what was interrupted goes on, so the same call continues
/// where a former one stopped. Networks that keep all experts are the same for every criterion and
/// exist once. Returns false, with `outcome` incomplete, where a signal stopped it. Throws Error:
/// usage where `out` was made with other settings.
bool run_prune_sweep(const PruneSweepConfig& config, const ReproduceOptions& options,
                     SweepOutcome& outcome);

}  // namespace moesaic
