// SPDX-License-Identifier: Apache-2.0
// Statistics of calibration in a safetensors file, for several prunings of one network.
#pragma once

#include <map>
#include <string>

#include "moesaic/base/filesystem.h"
#include "moesaic/prune/criteria.h"

namespace moesaic {

/// What statistics are of, by name: "network" and "data" are fingerprints, others settings such as
/// "images" and "seed".
using CalibrationSource = std::map<std::string, std::string>;

/// Writes the statistics atomically. Tensors are called "<block>.<name of LayerUse>", those of
/// `sums` "<block>.sums.<gate>.<norm>"; the metadata has "format" and the source.
void save_calibration(const fs::path& path, const ExpertUse& use, const CalibrationSource& source);

/// Reads them for a network. Throws Error (usage) that names the file and what differs where they
/// are of another source, Error (failure) where a tensor is missing, has another shape or is not
/// finite.
ExpertUse read_calibration(const fs::path& path, const CalibrationSource& source,
                           const Model& model);

}  // namespace moesaic
