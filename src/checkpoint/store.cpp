// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include <string_view>

#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"

namespace moesaic {
namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

void write_json(const fs::path& path, const Json& json) {
  try {
    write_atomic(path, std::string_view(json.dump(2) + "\n"));
  } catch (const Json::exception& error) {
    fail("{}: cannot be written as JSON: {}", path.string(), error.what());
  }
}

Json read_json(const fs::path& path) {
  Json json = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail("{}: damaged: it is no JSON document", path.string());
  return json;
}

/// Puts format and version first, so that a reader sees them before anything they determine.
Json with_format(const Json& config) {
  if (!config.is_object() || !config.contains("model")) {
    fail_usage("a checkpoint's config must be an object with the key 'model'");
  }
  Json full = {{"format", kCheckpointFormat}, {"version", kCheckpointVersion}};
  for (const auto& [key, value] : config.items()) {
    if (key != "format" && key != "version") full[key] = value;
  }
  return full;
}

Manifest verify(const fs::path& folder, const LoadOptions& options) {
  Manifest manifest = read_manifest(folder);
  for (const auto& [name, entry] : manifest.files) {
    const bool unread = name == kOptimizerFile && !options.optimizer;
    check_file(folder, name, entry, options.verify && !unread);
  }
  return manifest;
}

}  // namespace

Document stored_document(const fs::path& path) {
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  return Document::from_text(read_text(path, kMaxBytes, "a configuration"), path.string());
}

void save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint) {
  save_checkpoint(folder, checkpoint,
                  [&](const fs::path& path) { write_tensors(path, checkpoint.model); });
}

void save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint,
                     const std::function<void(const fs::path&)>& write_model) {
  const Json config = with_format(checkpoint.config);
  StagedDirectory staged(folder);
  write_model(staged.path() / kModelFile);
  if (!checkpoint.optimizer.empty()) {
    write_tensors(staged.path() / kOptimizerFile, checkpoint.optimizer);
  }
  write_json(staged.path() / kStateFile, checkpoint.state);
  write_json(staged.path() / kConfigFile, config);
  write_manifest(staged.path());
  staged.commit();
}

Checkpoint load_checkpoint(const fs::path& folder, const LoadOptions& options) {
  const Manifest manifest = verify(folder, options);
  Checkpoint checkpoint;
  checkpoint.folder = folder;
  checkpoint.config = read_json(folder / kConfigFile);
  checkpoint.state = read_json(folder / kStateFile);
  if (options.model) {
    const fs::path file = folder / kModelFile;
    checkpoint.model = options.mapped ? map_tensors(file) : read_tensors(file);
  }
  if (options.optimizer && manifest.files.contains(kOptimizerFile)) {
    checkpoint.optimizer = read_tensors(folder / kOptimizerFile);
  }
  return checkpoint;
}

}  // namespace moesaic
