// SPDX-License-Identifier: Apache-2.0
// Export to safetensors, which most libraries read, with the metadata needed to use the weights.
#pragma once

#include <filesystem>

#include "moesaic/export/info.h"

namespace moesaic {

/// Writes the weights, bit for bit. If `out` ends in ".safetensors", it is one file, with the texts
/// of side_files() in its metadata under their names without ".json"; else a folder, absent
/// or empty before, with `model.safetensors` and the side files. Atomic. Throws Error (usage) if
/// `out` exists already.
void export_safetensors(const Model& model, const std::filesystem::path& out,
                        const ExportInfo& info = {});

}  // namespace moesaic
