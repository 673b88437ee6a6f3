// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/parallel/process_mesh.h"

namespace moesaic::tools {

/// Joins the processes that torchrun, mpirun or srun started beside this one; null where it is
/// alone.
std::shared_ptr<const ProcessMesh> init_process_mesh(const ParallelConfig& config,
                                                     const std::string& device);

/// Runs `action` of a subcommand together with the others. Where it fails, or another runs another
/// subcommand, one process says why, and all of them end: this function does not return then. With
/// null it only runs the action.
void run_distributed(const std::string& verb, const std::shared_ptr<const ProcessMesh>& processes,
                     const std::function<void()>& action);

/// Throws Error (usage) where several processes were started: each would write what this subcommand
/// writes.
void require_single_process(std::string_view verb);

}  // namespace moesaic::tools
