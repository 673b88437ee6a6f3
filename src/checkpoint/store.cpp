// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "tensor_files.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

/// Checks that the manifest lists whatever an index does, since nothing else verifies it.
void check_index(const fs::path& folder, const std::string& name, const Manifest& manifest) {
  if (!is_index(name)) return;
  for (const auto& [tensor, file] : read_index(folder / name)) {
    if (manifest.files.contains(file)) continue;
    fail("{}: '{}', which '{}' names, is not listed", (folder / kManifestFile).string(), file,
         name);
  }
}

Manifest verify(const fs::path& folder, const LoadOptions& options) {
  Manifest manifest = read_manifest(folder);
  check_files(folder, manifest, [&](const std::string& name) {
    return options.verify && (options.optimizer || !is_of_optimizer(name));
  });
  check_index(folder, listed_tensors(manifest, kModelFile), manifest);
  if (options.optimizer) check_index(folder, listed_tensors(manifest, kOptimizerFile), manifest);
  return manifest;
}

}  // namespace

Checkpoint load_checkpoint(const fs::path& folder, const LoadOptions& options) {
  const Manifest manifest = verify(folder, options);
  Checkpoint checkpoint;
  checkpoint.folder = folder;
  checkpoint.config = read_stored(folder / kConfigFile, kMaxListBytes).to_json();
  checkpoint.state = read_stored(folder / kStateFile).to_json();
  if (options.model) {
    const fs::path file = folder / listed_tensors(manifest, kModelFile);
    checkpoint.model = read_weights(file, options.mapped);
  }
  const std::string optimizer = listed_tensors(manifest, kOptimizerFile);
  if (options.optimizer && !optimizer.empty()) {
    checkpoint.optimizer = read_tensors(folder / optimizer);
  }
  return checkpoint;
}

uint64_t weights_bytes(const fs::path& folder) {
  return file_bytes(open_tensors(tensors_path(folder, kModelFile)).paths);
}

}  // namespace moesaic
