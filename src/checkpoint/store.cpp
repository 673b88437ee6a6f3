// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <utility>

#include "manifest.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
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

std::shared_ptr<Model> load_model(const std::filesystem::path& run_or_checkpoint, bool trust) {
  return model_of(load_newest_checkpoint(run_or_checkpoint, {.optimizer = false, .trust = trust}));
}

namespace {

using Json = nlohmann::ordered_json;

/// Takes mean and std from the data's description of today.
void describe_data(const std::string& data, InputSpec& spec) {
  const DatasetSpec described = DatasetSource(data).base();
  spec.images = format_of(described).images;
  if (!spec.images) return;
  DatasetInfo info;
  info.channels = static_cast<int64_t>(described.mean.size());
  info.height = info.width = 1;  // The network has them.
  info.mean = described.mean;
  info.std = described.std;
  info = preprocessed_info(info, spec.preprocess);
  spec.mean = info.mean;
  spec.std = info.std;
}

/// Of a checkpoint that does not store it. Values that are not standardized are the same whatever
/// they come from; the others have to be guessed.
InputSpec guessed_input(const Checkpoint& checkpoint, const Model& model) {
  const Json& config = checkpoint.config;
  const auto stored = [&](const char* key) {
    return Value::from_json(config.value(key, Json()),
                            (checkpoint.folder / "config.json").string());
  };
  InputSpec spec;
  spec.input_size = model.input_shape();
  const Value preprocess = stored("preprocess"), data = stored("data");
  if (!preprocess.is_null()) spec.preprocess = parse<PreprocessConfig>(preprocess, "preprocess");
  spec.classes = class_names_of(checkpoint);
  const auto channels = static_cast<size_t>(spec.input_size[0]);
  const std::string name = data.is_null() ? "" : data.as_string("data");
  if (!name.empty()) spec.dataset = name_without_folders(name);
  if (spec.preprocess.values != "standardized") {
    const bool symmetric = spec.preprocess.values == "symmetric";
    spec.mean.assign(channels, symmetric ? 0.5 : 0.0);
    spec.std.assign(channels, symmetric ? 0.5 : 1.0);
  } else if (!spec.preprocess.mean.empty()) {
    spec.own_values = true;
    spec.mean = std::exchange(spec.preprocess.mean, {});
    spec.std = std::exchange(spec.preprocess.std, {});
  } else if (!name.empty() && is_described(name)) {
    describe_data(name, spec);
    if (spec.images) {
      log_warning(
          "{}: does not store mean and std of its input (an older version wrote it): those of data "
          "set '{}' as it is described now are used",
          checkpoint.folder.string(), name);
    }
  } else {
    log_warning(
        "{}: stores neither mean nor std of its input, and data set '{}' is not described "
        "here: they are not known",
        checkpoint.folder.string(), name);
  }
  if (!spec.images) return spec;
  spec.rescale_factor = 1.0 / 255.0;
  spec.channel_order = channel_order(spec.input_size[0]);
  return spec;
}

}  // namespace

std::vector<std::string> class_names_of(const Checkpoint& checkpoint) {
  const auto input = checkpoint.config.find(kInputKey);
  const bool older = input == checkpoint.config.end();
  const Json& holder = older ? checkpoint.config : *input;
  const Value classes =
      Value::from_json(holder.is_object() ? holder.value("classes", Json()) : Json(),
                       (checkpoint.folder / "config.json").string());
  std::vector<std::string> names;
  if (classes.is_null()) return names;
  for (const Value& name : classes.items("classes")) names.push_back(name.as_string("classes"));
  return names;
}

std::vector<std::string> class_names_of(const std::filesystem::path& run_or_checkpoint,
                                        bool trust) {
  return class_names_of(load_newest_checkpoint(
      run_or_checkpoint, {.verify = false, .model = false, .optimizer = false, .trust = trust}));
}

InputSpec input_spec_of(const Checkpoint& checkpoint, const Model& model) {
  const auto stored = checkpoint.config.find(kInputKey);
  if (stored == checkpoint.config.end()) return guessed_input(checkpoint, model);
  const std::string from = is_export(checkpoint.folder)
                               ? part_of_export(checkpoint.folder, "preprocess")
                               : (checkpoint.folder / "config.json").string();
  InputSpec spec = read_input_spec(*stored, from);
  if (spec.input_size != model.input_shape()) {
    fail("{}: input.input_size is [{}], the network takes [{}]", from,
         fmt::join(spec.input_size, ", "), fmt::join(model.input_shape(), ", "));
  }
  const auto outputs = static_cast<size_t>(model.classes());
  if (!spec.classes.empty() && outputs != 0 && spec.classes.size() != outputs) {
    fail("{}: input.classes has {} names, the network has {} outputs", from, spec.classes.size(),
         outputs);
  }
  return spec;
}

}  // namespace moesaic
