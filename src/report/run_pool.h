// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "moesaic/report/experiment.h"

namespace moesaic {

/// Makes run number `task` while `going()`; returns text for a progress bar, or nothing where it
/// was ended.
using MakeRun =
    std::function<std::optional<std::string>(size_t task, const std::function<bool()>& going)>;

/// Makes `count` runs in parallel, one per thread. Returns false if a signal stopped it. An
/// exception of a run ends all runs and is rethrown.
bool make_runs(size_t count, const ReproduceOptions& options, const MakeRun& make);

}  // namespace moesaic
