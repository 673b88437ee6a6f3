// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace moesaic {

inline constexpr const char* kCheckpointFormat = "moesaic-checkpoint";
inline constexpr int64_t kCheckpointVersion = 1;
inline constexpr const char* kManifestFile = "MANIFEST.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kConfigFile = "config.json";

struct ManifestEntry {
  int64_t size = 0;
  std::string sha256;
};

struct Manifest {
  std::string format = kCheckpointFormat;
  int64_t version = kCheckpointVersion;
  std::map<std::string, ManifestEntry> files;
};

/// Computes size and SHA-256 of every file of a directory and writes its MANIFEST.json.
void write_manifest(const std::filesystem::path& folder);

/// Reads the MANIFEST.json of a directory. Throws Error (failure) if it is missing, damaged, of
/// another format or version, or does not list the files that every checkpoint has.
Manifest read_manifest(const std::filesystem::path& folder);

/// Throws Error (failure) unless a listed file exists with its size and, if `hash`, its SHA-256.
void check_file(const std::filesystem::path& folder, const std::string& name,
                const ManifestEntry& entry, bool hash);

}  // namespace moesaic
