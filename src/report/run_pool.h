// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/report/experiment.h"

namespace moesaic {

/// Is told how many images a run has taken; returns whether it is to go on.
using Going = std::function<bool(int64_t images)>;

/// Makes run number `task` while `going()`; returns text for a progress bar, or nothing where it
/// was ended.
using MakeRun = std::function<std::optional<std::string>(size_t task, const Going& going)>;

/// Ends a run that a signal stopped.
struct Stopped {};

/// Makes runs of so many images in parallel, one per thread. Returns false if a signal stopped it.
/// An exception of a run ends all runs and is rethrown.
bool make_runs(const std::vector<int64_t>& images, const ReproduceOptions& options,
               const MakeRun& make);

/// Makes runs that take all threads and tell of their progress themselves, one after the other.
bool make_runs_in_turn(size_t count, const ReproduceOptions& options, const MakeRun& make);

}  // namespace moesaic
