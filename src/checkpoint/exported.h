// SPDX-License-Identifier: Apache-2.0
// What `moesaic export` writes, read as a checkpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "moesaic/checkpoint/store.h"

namespace moesaic {

/// Returns whether a path is a file that ends in .safetensors, an index of such files, a
/// TorchScript file, or a folder of an export.
bool is_export(const std::filesystem::path& path);

/// Returns whether a file is an archive as TorchScript's are.
bool is_torchscript(const std::filesystem::path& file);

/// Reads an export; of a TorchScript file the safetensors that it carries, and no pickle. Throws
/// Error (failure) where it lacks a model's configuration, Error (usage) for a TorchScript file
/// that carries none, unless the options say that it is trusted.
Checkpoint load_export(const std::filesystem::path& path, const LoadOptions& options);

/// Returns where a part of an export is, for messages: "config", "labels", "preprocess" or
/// "evaluation", beside the weights or in their file.
std::string part_of_export(const std::filesystem::path& path, const std::string& name);

/// Returns the network that a stored configuration describes, on the meta device. Throws Error
/// (failure) where this program cannot build it.
std::shared_ptr<Model> stored_shape(const Value& config);

/// Returns the file with a loaded checkpoint's weights, or their index.
std::filesystem::path weights_file(const Checkpoint& checkpoint);

}  // namespace moesaic
