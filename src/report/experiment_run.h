// SPDX-License-Identifier: Apache-2.0
// A run of an experiment, planned once for all its seeds and held in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/report/probe.h"
#include "moesaic/report/runs.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/run_config.h"
#include "run_rows.h"

namespace moesaic {

/// Returns the configuration of the row's run, in which no phase makes more than the experiment's
/// `max_steps` updates. Throws as parse() does.
RunConfig config_of(const RunsConfig& experiment, const PlannedRow& row);

/// Returns the command-line arguments of which the row's own settings leave nothing.
std::set<std::string> lost_arguments(const RunsConfig& experiment, const PlannedRow& row);

/// What a network is measured on.
struct Grounds {
  DataSplits data;  ///< Data of a phase, preprocessed.
  std::string loss;
};

/// What is measured at the end of a phase, on its data.
struct PhaseProbes {
  Grounds grounds;
  std::vector<const Probe*> probes;
  std::map<std::string, std::string> names;  ///< Names in the results, by metric.
  std::string row;                           ///< Row of the results, "" for the run's own.
};

struct ExperimentRun {
  std::string row;
  RunConfig config;
  std::string device = "cpu";
  Grounds grounds;                            ///< Those of the last phase.
  std::vector<const Probe*> probes;           ///< All applicable probes, for its end.
  std::vector<const Probe*> snapshot_probes;  ///< Probes of snapshots.
  std::map<std::string, PhaseProbes> after;   ///< By phase.
  std::vector<FilledRow> earlier;             ///< In the order of their phases.
  std::vector<Metric> metrics;                ///< Metrics of all other probes.
  std::vector<Metric> snapshot_metrics;
  std::vector<std::string> best;       ///< Metrics whose best snapshot is a metric, best_<name>.
  std::vector<std::string> converged;  ///< See SnapshotConfig.
  int64_t converged_unit = 1;          ///< Updates that `converged` counts as one.
  int64_t every = 1;                   ///< Updates between two snapshots.
  int64_t earlier_phases = 0;          ///< Updates before the last phase that makes any.
  std::vector<std::pair<int64_t, int64_t>> phases = {};  ///< Planned updates, and images of each.

  /// Returns how many images the first so many updates take; all of them by default.
  int64_t images(int64_t updates = std::numeric_limits<int64_t>::max()) const;
};

/// Plans the runs of a row. Throws Error (usage) for inconsistent settings and unknown probes.
ExperimentRun plan_run(const PlannedRow& row, const RunsConfig& experiment, Datasets& datasets);

/// Returns the measurement of a network at a step of such a run. `proceed` is called after each
/// batch; it may throw.
Measurement measured(const RunConfig& config, const Grounds& grounds,
                     const std::vector<const Probe*>& probes, Model& model, int64_t step,
                     const std::function<bool(int64_t, int64_t)>& proceed = {});

/// Returns what opens these data in a run.
DatasetOpener opener_of(Datasets& datasets);

/// Trains and measures the run with the seed config.seed + `index`: a function of these only, but
/// for the seconds that it took to converge.
/// Returns nothing where `going` ended it.
std::optional<MadeRun> make_run(const ExperimentRun& run, int64_t index, Datasets& datasets,
                                const Going& going);

}  // namespace moesaic
