// SPDX-License-Identifier: Apache-2.0
// The runs of an experiment: rows that are planned once for all seeds, pruned networks among them,
// and who makes their runs, each once.
#pragma once

#include "moesaic/base/file.h"
#include "moesaic/base/signal.h"
#include "moesaic/report/runs.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// Is told how many images a run has taken; returns whether it is to go on.
using ImageCallback = std::function<bool(int64_t images)>;

/// What a run comes to, by row of the results.
using RunResult = std::map<std::string, RunRecord>;

/// A row of an experiment, ready to run with any seed.
struct PreparedRow {
  std::string name;
  /// Rows of the results that its runs fill, without them, its own last.
  std::vector<MeasuredRow> result_rows = {};
  int64_t num_runs = 1;
  int64_t images = 0;  ///< That a run takes.
  /// Makes run `index` while `on_images()`; nothing where that ended it.
  std::function<std::optional<RunResult>(int64_t index, const ImageCallback& on_images)> make = {};
  /// Rows of a stage may be made side by side; they begin with what those of earlier stages left on
  /// disk.
  size_t stage = 0;
};

/// All rows of an experiment.
struct PreparedRuns {
  Json settings = {};                  ///< Of the folder; "runs" are those of each row.
  std::vector<PreparedRow> rows = {};  ///< By stage.
  /// Whether runs have folders: they may be large and are made one at a time.
  bool has_run_folders = false;
  /// Adds what is measured of all rows together. Throws Stopped.
  std::function<void(std::vector<MeasuredRow>& rows)> finish = {};
};

/// Makes the folder of an experiment, locks it and writes `settings` to its config.json, or
/// compares them with those in it. Throws Error where they differ, for somebody else's folder, and
/// for links to files in it.
LockFile hold_folder(const fs::path& out, const Json& settings);

/// Makes the runs that the experiment's folder lacks, and adds to `rows` what all of them
/// came to, in process 0. Returns false if a signal stopped it.
bool make_rows(const PreparedRuns& runs, const ReproduceOptions& options,
               std::vector<MeasuredRow>& rows);

/// Returns the settings of the row's run: `train` with all that the row sets.
Value settings_of(const RunsConfig& experiment, const PlannedRow& row);

/// Returns the command-line arguments of which the row's own settings leave nothing.
std::set<std::string> lost_arguments(const RunsConfig& experiment, const PlannedRow& row);

/// Returns the configuration of the row's run, in which no phase makes more than the experiment's
/// `max_steps` steps. Throws as parse() does.
RunConfig config_of(const RunsConfig& experiment, const PlannedRow& row);

/// Returns what opens these data in a run.
DatasetOpener opener_of(DatasetCache& datasets);

/// Plans the runs of a row that have this configuration but for their seeds, config.seed + index. A
/// run is a function of these only, but for the seconds that it took to converge. Throws Error
/// (usage) for inconsistent settings and unknown probes.
PreparedRow prepare_run(RunConfig config, const PlannedRow& row, const RunsConfig& experiment,
                        const std::string& device, DatasetCache& datasets);

/// Number of the images that a phase is measured on, in the runs of its row.
inline constexpr const char* kTestImages = "test_images";

/// Returns what is wrong with the settings of an experiment that prunes.
ConfigProblem sweep_problem(const RunsConfig& config);

/// Returns the rows of the results that the settings name.
std::vector<std::string> sweep_rows(const RunsConfig& config);
/// Whether a sweep that keeps other numbers, compares other criteria or, where the command line
/// gives its own, makes other choices by layer has this row.
bool is_possible_sweep_row(const RunsConfig& config, const std::string& row);

/// Checks the experiment and returns its plan as text: the run that is pruned, with its recovery,
/// and the networks with what they save. Throws Error (usage) as the experiment would.
std::string plan_of_sweep(const RunsConfig& config);

/// Returns the rows, whose runs leave in `options.out`:
///
///     model.ts.pt             the exported network
///     seed<S>/train/          the run that is pruned, unless `finetuned` is
///     seed<S>/pruned/keep<N>-<criterion>/    checkpoints
///     seed<S>/keep<N>-<criterion>/    the runs that recover them; keep<N>/ of the unpruned network
///     .../<choice>.<criterion>/       the same of choices by layer
///
/// An interrupted run is resumed. Networks that keep all experts are the same for every criterion
/// and exist once.
PreparedRuns prepare_sweep(const RunsConfig& config, const ReproduceOptions& options,
                           DatasetCache& datasets);

}  // namespace moesaic
