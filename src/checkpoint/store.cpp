// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "tensor_files.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

Json read_json(const fs::path& path) {
  Json json = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail("{}: damaged: it is no JSON document", path.string());
  return json;
}

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

Document stored_document(const fs::path& path) {
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  return Document::from_text(read_text(path, kMaxBytes, "a configuration"), path.string());
}

Checkpoint load_checkpoint(const fs::path& folder, const LoadOptions& options) {
  const Manifest manifest = verify(folder, options);
  Checkpoint checkpoint;
  checkpoint.folder = folder;
  checkpoint.config = read_json(folder / kConfigFile);
  checkpoint.state = read_json(folder / kStateFile);
  if (options.model) {
    const fs::path file = folder / listed_tensors(manifest, kModelFile);
    checkpoint.model = options.mapped ? map_tensors(file) : read_tensors(file);
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
