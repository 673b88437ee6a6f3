// SPDX-License-Identifier: Apache-2.0
// What `moesaic export` writes, read as a checkpoint.
#pragma once

#include <filesystem>

#include "moesaic/checkpoint/store.h"

namespace moesaic {

/// Returns whether a path is a file that ends in .safetensors, an index of such files, or a folder
/// of an export.
bool is_safetensors_export(const std::filesystem::path& path);

/// Returns whether a file is an archive as TorchScript's are.
bool is_torchscript(const std::filesystem::path& file);

/// Returns whether it is either.
bool is_export(const std::filesystem::path& path);

/// Reads a safetensors export. Throws Error (failure) where it lacks a model's configuration.
Checkpoint load_export(const std::filesystem::path& path, const LoadOptions& options);

/// Reads a TorchScript export without its code, which is not run. Throws Error (failure) where it
/// is damaged or not one of ours.
Checkpoint load_torchscript(const std::filesystem::path& file, const LoadOptions& options);

/// Returns the file with a loaded checkpoint's weights, or their index.
std::filesystem::path weights_file(const Checkpoint& checkpoint);

}  // namespace moesaic
