// SPDX-License-Identifier: Apache-2.0
// Processes that are threads of one test: they meet through a store in memory and talk by Gloo.
#pragma once

#include "moesaic/parallel/process_mesh.h"

namespace moesaic::test {

/// Runs `action` in so many processes at once, each with one compute thread, and throws the first
/// error that is not about a process that another error ended.
void run_processes(int64_t size, const ParallelConfig& config,
                   const std::function<void(const std::shared_ptr<const ProcessMesh>&)>& action);

}  // namespace moesaic::test
