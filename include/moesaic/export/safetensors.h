// SPDX-License-Identifier: Apache-2.0
// Weights in the format that everything reads, with what is needed to use them beside.
#pragma once

#include <filesystem>
#include <memory>

#include "moesaic/export/info.h"

namespace moesaic {

/// Where `out` ends in ".safetensors": one file, the texts of side_files() in its metadata under
/// "config", "labels" and "preprocess". Else a folder, which must be absent or empty:
/// `model.safetensors` and the side files. Atomic either way; values are bit-equal. Throws Error
/// (usage) where there is something already.
void export_safetensors(const Model& model, const std::filesystem::path& out,
                        const ExportInfo& info = {});

/// The network of such a file or folder. Throws Error where it is not one.
std::shared_ptr<Model> load_exported(const std::filesystem::path& path);

}  // namespace moesaic
