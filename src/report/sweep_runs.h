// SPDX-License-Identifier: Apache-2.0
// Pruned networks as rows of the experiment "runs".
#pragma once

#include <string>

#include "moesaic/report/runs.h"
#include "moesaic/train/datasets.h"
#include "moesaic/train/run_config.h"
#include "run_rows.h"

namespace moesaic {

/// Number of the images that a phase is measured on, in the runs of its row.
inline constexpr const char* kTestImages = "test_images";

/// Returns what is wrong with the settings of an experiment that prunes.
ConfigProblem sweep_problem(const RunsConfig& config);

/// Returns the rows of the results that the settings name.
std::vector<std::string> sweep_rows(const RunsConfig& config);
/// Whether a sweep that keeps other numbers, compares other criteria or, where the command line
/// gives its own, makes other choices by layer has this row.
bool is_row_of_some_sweep(const RunsConfig& config, const std::string& row);

/// Returns the run that is pruned; of a network that is given its last phase alone.
RunConfig sweep_train(const RunsConfig& config);

/// Returns what networks of this size keep.
KeepSpec keep_of(const SweepConfig& config, const SweepSize& size);

/// Checks the experiment and returns its plan as text: the run that is pruned, with its recovery,
/// and the networks. Throws Error (usage) as the experiment would.
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
ReadyRuns ready_sweep(const RunsConfig& config, const ReproduceOptions& options,
                      Datasets& datasets);

}  // namespace moesaic
