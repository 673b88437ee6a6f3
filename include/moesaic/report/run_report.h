// SPDX-License-Identifier: Apache-2.0
// The report of a run, as a page to read or to keep beside its results.
#pragma once

#include <string>

#include "moesaic/base/filesystem.h"

namespace moesaic {

/// Returns Markdown on a run's folder: the phases of its recipe, the last evaluation of each phase
/// on each split, the use of experts in the last one, the curves, and further commands of
/// `program`, this one's name. Throws Error (usage) where the folder is no run.
std::string run_report(const fs::path& run, const std::string& program = "moesaic");

}  // namespace moesaic
