// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "moesaic/checkpoint/parts.h"

namespace moesaic {

class Processes;  // parallel/processes.h

/// Writes a checkpoint of which each process has a part, which may be empty: each writes its own,
/// and process 0 publishes the folder, which all of them see. `config` and `state` are those of
/// process 0. Returns in every process once the checkpoint is published. Throws as write_part() and
/// publish() do, and LostProcess where another process failed.
void save_together(const Processes& processes, const std::filesystem::path& folder,
                   const CheckpointPart& part, const nlohmann::ordered_json& config,
                   const nlohmann::ordered_json& state);

}  // namespace moesaic
