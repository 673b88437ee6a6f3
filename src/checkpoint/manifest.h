// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "moesaic/checkpoint/parts.h"
#include "moesaic/config/schema.h"

namespace moesaic {

inline constexpr const char* kCheckpointFormat = "moesaic-checkpoint";
inline constexpr int64_t kCheckpointVersion = 1;
inline constexpr const char* kManifestFile = "MANIFEST.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kConfigFile = "config.json";

struct Manifest {
  std::string format = kCheckpointFormat;
  int64_t version = kCheckpointVersion;
  std::map<std::string, FileContent> files;
};

template <class Fields>
void describe(Fields& f, FileContent& c) {
  f("size", c.size, "bytes", required, at_least(0));
  f("sha256", c.sha256, "of the content, as hexadecimal digits", required);
}

/// Returns size and SHA-256 of a file.
FileContent content_of(const std::filesystem::path& path);

/// Writes the MANIFEST.json of a directory.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

/// Reads the MANIFEST.json of a directory. Throws DamagedCheckpoint if it is missing; Error
/// (failure) if it cannot be read, is of another format or version, or does not list the files that
/// every checkpoint has.
Manifest read_manifest(const std::filesystem::path& folder);

/// Returns what the manifest lists of model.safetensors or optimizer.safetensors: the file, its
/// index, or "" for neither.
std::string listed_tensors(const Manifest& manifest, const std::string& file);

/// Returns whether a file of a checkpoint holds tensors of the optimizer, or is their index.
bool is_of_optimizer(std::string_view name);

/// Throws DamagedCheckpoint unless a listed file exists with its size and, if `hash`, its SHA-256;
/// Error (failure) where that cannot be known.
void check_file(const std::filesystem::path& folder, const std::string& name,
                const FileContent& entry, bool hash);

/// Checks all listed files in parallel, and hashes those for which `hash` returns true. Throws the
/// error of the first one by name.
void check_files(const std::filesystem::path& folder, const Manifest& manifest,
                 const std::function<bool(const std::string& name)>& hash);

}  // namespace moesaic
