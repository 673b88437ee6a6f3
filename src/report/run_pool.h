// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "moesaic/report/experiment.h"

namespace moesaic {

/// Makes run number `task` as long as `going()`; returns what a progress bar says of it, or nothing
/// where it was ended.
using MakeRun =
    std::function<std::optional<std::string>(size_t task, const std::function<bool()>& going)>;

/// Makes `count` runs, as many side by side as there are threads, each on one thread. False where a
/// signal stopped it. What a run throws ends all and is thrown.
bool make_runs(size_t count, const ReproduceOptions& options, const MakeRun& make);

}  // namespace moesaic
