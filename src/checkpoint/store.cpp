// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include <torch/types.h>

#include <utility>
#include <vector>

#include "exported.h"
#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"

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

void check_finite_weights(const TensorMap& tensors, const std::string& from) {
  for (const auto& [name, tensor] : tensors) {
    if (!all_finite(tensor)) fail("{}: '{}' holds NaN or infinity", from, name);
  }
}

/// Returns the network of a configuration on the meta device, which the tensors have to fit.
std::shared_ptr<Model> fitting_shape(const Value& config, const TensorMap& tensors,
                                     const std::string& from) {
  std::shared_ptr<Model> shape = stored_shape(config);
  load_state(*shape, tensors, from, shape->setting_paths().kept_experts);
  return shape;
}

std::string weights_of(const Checkpoint& checkpoint) {
  return weights_file(checkpoint).string();
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

std::shared_ptr<Model> stored_shape(const Value& config) {
  try {
    return build_model_shape(config);
  } catch (const Error& error) {
    fail("{}", error.what());  // Not written by users: it is damaged or of another version.
  }
}

Value model_config(const Checkpoint& checkpoint) {
  const bool exported = is_export(checkpoint.folder);
  if (exported && !std::filesystem::is_directory(checkpoint.folder)) {
    return Value::from_json(checkpoint.config.at("model"),
                            part_of_export(checkpoint.folder, "config"));
  }
  const Value stored = read_stored(checkpoint.folder / kConfigFile, kMaxListBytes);
  if (!exported) return stored.at("model");
  Value::Object settings = stored.members("model");
  std::erase_if(settings, [](const Value::Member& one) { return one.key == kConstantsKey; });
  return {stored.origin(), std::move(settings)};
}

std::shared_ptr<Model> shape_of(const Checkpoint& checkpoint) {
  check_finite_weights(checkpoint.model, weights_of(checkpoint));
  return fitting_shape(model_config(checkpoint), checkpoint.model, weights_of(checkpoint));
}

std::shared_ptr<Model> model_of(const Value& config, const TensorMap& tensors,
                                const std::string& from) {
  const int64_t count = fitting_shape(config, tensors, from)->parameter_count();
  std::shared_ptr<Model> model = build_model(config, 0, static_cast<double>(count));
  load_state(*model, tensors, from);
  model->eval();
  return model;
}

std::shared_ptr<Model> model_of(const Checkpoint& checkpoint) {
  check_finite_weights(checkpoint.model, weights_of(checkpoint));
  return model_of(model_config(checkpoint), checkpoint.model, weights_of(checkpoint));
}

std::shared_ptr<Model> load_model(const std::filesystem::path& run_or_checkpoint) {
  return model_of(load_newest_checkpoint(run_or_checkpoint, {.optimizer = false}));
}

}  // namespace moesaic
