// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "moesaic/parallel/processes.h"

namespace moesaic::tools {

/// Meets the processes that torchrun, mpirun or srun started beside this one; null where it is
/// alone.
std::shared_ptr<const Processes> meet_processes(const ParallelConfig& config,
                                                const std::string& device);

/// Runs `action` together with the others. Where it fails, one process says why, and all of them
/// end: this function does not return then. With null it only runs the action.
void run_together(const std::shared_ptr<const Processes>& processes,
                  const std::function<void()>& action);

/// Makes a verb refuse to run where several processes were started, each of which would write what
/// it writes.
void take_one_process(CLI::App& verb);

}  // namespace moesaic::tools
