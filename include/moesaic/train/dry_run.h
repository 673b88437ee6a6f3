// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "moesaic/train/run_config.h"
#include "moesaic/train/scaling.h"

namespace moesaic {

/// Checks a run as far as possible without training it, and returns its plan as text: network,
/// phases and memory. Nothing is allocated; data and `init` that are missing are reported in the
/// log and in the text where descriptions do without them. Throws Error (usage) as plan_phases()
/// does. With `scaling` the plan of many processes is added, see describe_scaling().
std::string dry_run(const RunConfig& given, const std::optional<ScalingOptions>& scaling = {});

}  // namespace moesaic
