// SPDX-License-Identifier: Apache-2.0
// Statistics of calibration in a safetensors file, for several prunings of one network.
#pragma once

#include "moesaic/base/filesystem.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {

/// What statistics are of, by name: "network" and "data" are fingerprints, others settings such as
/// "images" and "seed". kCalibratedCheckpointKey names the checkpoint for messages and is not
/// compared.
using CalibrationSource = std::map<std::string, std::string>;
inline constexpr const char* kCalibratedCheckpointKey = "checkpoint";

/// Returns what is of a checkpoint: "network", the fingerprint of its weights and the model's
/// configuration, and kCalibratedCheckpointKey.
CalibrationSource network_source(const Checkpoint& checkpoint);

/// Writes the statistics atomically. Tensors are called "<block>.<name of LayerStatistics>", those
/// of `sums` "<block>.sums.<gate>.<norm>"; the metadata has "format", the source and the hash of
/// the tensors.
void save_calibration(const fs::path& path, const ExpertStatistics& statistics,
                      const CalibrationSource& source);

/// Reads statistics for a network. Throws Error (usage) that names the file and what differs for
/// statistics of another source and a missing file; Error (failure) for altered statistics, and a
/// tensor that is missing or has another shape or impossible values.
ExpertStatistics read_calibration(const fs::path& path, const CalibrationSource& source,
                                  const Model& model);

}  // namespace moesaic
