// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <system_error>

#include "manifest.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/checkpoint/program.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
#include "moesaic/models/registry.h"

namespace moesaic {

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
    return options.verify && (options.load_optimizer || !is_of_optimizer(name));
  });
  check_index(folder, listed_tensors(manifest, kModelFile), manifest);
  if (options.load_optimizer)
    check_index(folder, listed_tensors(manifest, kOptimizerFile), manifest);
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
  std::shared_ptr<Model> shape = stored_meta_model(config);
  load_state(*shape, tensors, from, shape->setting_paths().kept_experts);
  return shape;
}

constexpr std::string_view kStep = "step_";

/// Returns whether a checkpoint was saved within a phase that evaluates an average of the weights.
bool is_averaged(const Checkpoint& checkpoint) {
  const Json index = value_at(checkpoint.state, "/phase_index");
  if (!step_of(checkpoint.folder) || !index.is_number_integer()) return false;
  const Json decay = value_at(checkpoint.config, "/run/phases/" + index.dump() + "/ema_decay");
  return decay.is_number() && decay > 0.0;
}

/// Returns which checkpoints of phases, and best, lie beside those of steps, as a part of a line.
std::string others_beside(const fs::path& checkpoints) {
  std::vector<std::string> others;
  for (const fs::path& folder : {checkpoints.parent_path(), checkpoints}) {
    for (const fs::path& saved : saved_checkpoints(folder)) {
      if (!step_of(saved)) others.push_back(saved.string());
    }
  }
  return others.empty() ? "" : fmt::format("; other checkpoints: {}", fmt::join(others, ", "));
}

/// Takes mean and std from the data's description of today.
void describe_data(const std::string& data, InputSpec& spec) {
  const DatasetSpec described = DatasetSource(data).base();
  spec.has_images = format_of(described).has_images;
  if (!spec.has_images) return;
  DatasetInfo info;
  info.channels = std::ssize(described.mean);
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
    spec.has_own_values = true;
    spec.mean = std::exchange(spec.preprocess.mean, {});
    spec.std = std::exchange(spec.preprocess.std, {});
  } else if (!name.empty() && has_spec(name)) {
    describe_data(name, spec);
    if (spec.has_images) {
      log_warning(
          "{}: mean and std of the input are not stored (by an older version); those in today's "
          "description of dataset '{}' are used",
          checkpoint.folder.string(), name);
    }
  } else {
    log_warning(
        "{}: mean and std of the input are not stored, and dataset '{}' has no description here; "
        "they are unknown",
        checkpoint.folder.string(), name);
  }
  if (!spec.has_images) return spec;
  spec.rescale_factor = 1.0 / 255.0;
  spec.channel_order = channel_order(spec.input_size[0]);
  return spec;
}

}  // namespace

Checkpoint load_checkpoint(const fs::path& folder, const LoadOptions& options) {
  const Manifest manifest = verify(folder, options);
  Checkpoint checkpoint{.config = read_stored(folder / kConfigFile, kMaxListBytes).to_json(),
                        .state = read_stored(folder / kStateFile, kMaxListBytes).to_json(),
                        .folder = folder};
  if (options.load_model) {
    const fs::path file = folder / listed_tensors(manifest, kModelFile);
    checkpoint.model = read_weights(file, options.mmap);
  }
  const std::string optimizer = listed_tensors(manifest, kOptimizerFile);
  if (options.load_optimizer && !optimizer.empty()) {
    checkpoint.optimizer = read_tensors(folder / optimizer);
  }
  if (options.load_model && !options.load_optimizer && is_averaged(checkpoint)) {
    constexpr std::string_view kAverage = ".ema";  // See WeightAverage.
    Checkpoint whole = load_checkpoint(folder, {.verify = options.verify, .load_model = false});
    for (auto& [name, tensor] : whole.optimizer) {
      if (!name.ends_with(kAverage)) continue;
      checkpoint.model[name.substr(0, name.size() - kAverage.size())] = std::move(tensor);
    }
  }
  return checkpoint;
}

uint64_t weights_bytes(const fs::path& folder) {
  return file_bytes(open_tensors(tensors_path(folder, kModelFile)).paths);
}

std::shared_ptr<Model> stored_meta_model(const Value& config) {
  return with_errors_as_failures([&] { return build_meta_model(config); });
}

Value model_config(const Checkpoint& checkpoint) {
  const bool exported = is_export(checkpoint.folder);
  if (exported && !fs::is_directory(checkpoint.folder)) {
    return Value::from_json(checkpoint.config.at("model"),
                            part_of_export(checkpoint.folder, "config"));
  }
  const Value stored = read_stored(checkpoint.folder / kConfigFile, kMaxListBytes);
  if (!exported) return stored.at("model");
  Value::Object settings = stored.members("model");
  std::erase_if(settings, [](const Value::Member& one) { return one.key == kConstantsKey; });
  return {stored.origin(), std::move(settings)};
}

std::shared_ptr<Model> meta_model_of(const Checkpoint& checkpoint) {
  const std::string from = weights_file(checkpoint).string();
  check_finite_weights(checkpoint.model, from);
  return fitting_shape(model_config(checkpoint), checkpoint.model, from);
}

std::shared_ptr<Model> model_of(const Value& config, const TensorMap& tensors,
                                const std::string& from) {
  const int64_t count = fitting_shape(config, tensors, from)->num_parameters();
  std::shared_ptr<Model> model = build_model(config, 0, static_cast<double>(count));
  load_state(*model, tensors, from);
  model->eval();
  return model;
}

std::shared_ptr<Model> model_of(const Checkpoint& checkpoint) {
  if (is_exported_program(checkpoint.folder)) {
    std::shared_ptr<Model> shape = stored_meta_model(model_config(checkpoint));
    InputSpec input;
    if (value_at(checkpoint.config, std::string("/") + kInputKey + "/takes_bytes") == true) {
      input = input_spec_of(checkpoint, *shape);
    }
    return program_model(checkpoint.folder, std::move(shape), input);
  }
  const std::string from = weights_file(checkpoint).string();
  check_finite_weights(checkpoint.model, from);
  return model_of(model_config(checkpoint), checkpoint.model, from);
}

std::shared_ptr<Model> load_model(const fs::path& run_or_checkpoint, bool trust) {
  return model_of(
      load_newest_checkpoint(run_or_checkpoint, {.load_optimizer = false, .trust = trust}));
}

std::vector<std::string> class_names_of(const Checkpoint& checkpoint) {
  const Json& config = checkpoint.config;  // Older ones have the names outside of the input.
  const std::string place = config.contains(kInputKey) ? std::string("/") + kInputKey : "";
  const Value classes = Value::from_json(value_at(config, place + "/classes"),
                                         (checkpoint.folder / "config.json").string());
  std::vector<std::string> names;
  if (classes.is_null()) return names;
  for (const Value& name : classes.items("classes")) names.push_back(name.as_string("classes"));
  return names;
}

std::vector<std::string> class_names_of(const fs::path& run_or_checkpoint, bool trust) {
  return class_names_of(load_newest_checkpoint(
      run_or_checkpoint,
      {.verify = false, .load_model = false, .load_optimizer = false, .trust = trust}));
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
  const auto outputs = static_cast<size_t>(model.num_classes());
  if (!spec.classes.empty() && outputs != 0 && spec.classes.size() != outputs) {
    fail("{}: input.classes has {} names, the network has {} outputs", from, spec.classes.size(),
         outputs);
  }
  return spec;
}

Checkpoint load_newest_step(const fs::path& checkpoints,
                            const std::function<LoadOptions(const fs::path& step)>& options_of) {
  const std::vector<fs::path> steps = step_checkpoints(checkpoints);
  std::string first_error;
  for (const fs::path& step : steps) {
    try {
      Checkpoint loaded = load_checkpoint(step, options_of(step));
      if (!first_error.empty())
        log_warning("{}: this older checkpoint is read instead", step.string());
      return loaded;
    } catch (const DamagedCheckpointError& error) {
      log_warning("{}; this checkpoint is skipped", error.what());
      if (first_error.empty()) first_error = error.what();
    } catch (const Error& error) {
      fail("{}; {} may be intact, so it is not skipped; make it readable or move it away",
           error.what(), step.filename().string());
    }
  }
  const std::string none =
      steps.size() == 1
          ? "its only checkpoint of a step is corrupt"
          : fmt::format("all of its {} checkpoints of steps are corrupt", steps.size());
  fail("{}: {}; the newest: {}{}", checkpoints.string(), none, first_error,
       others_beside(checkpoints));
}

std::optional<int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kStep)) return std::nullopt;
  const auto step = parsed_number<int64_t>(std::string_view(name).substr(kStep.size()));
  // "step_007" is somebody's own folder.
  return step && *step >= 0 && name == step_name(*step) ? step : std::nullopt;
}

std::string step_name(int64_t step) {
  return std::string(kStep) + std::to_string(step);
}

std::vector<fs::path> step_checkpoints(const fs::path& checkpoints) {
  std::vector<fs::path> steps;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end;
       it.increment(error)) {
    if (!step_of(it->path())) continue;
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      steps.push_back(it->path());
    } else if (it->is_symlink()) {
      fail("{}: a link that leads to no folder; make its disk available or remove the link",
           it->path().string());
    }
  }
  const bool none =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !none) fail("{}: cannot list: {}", checkpoints.string(), error.message());
  std::sort(steps.begin(), steps.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(*step_of(b), a) < std::pair(*step_of(a), b);
  });
  return steps;
}

std::vector<fs::path> saved_checkpoints(const fs::path& folder) {
  std::vector<fs::path> saved;
  std::error_code error, ignored;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const bool staged = it->path().filename().string().starts_with('.');
    if (!staged && fs::exists(it->path() / kManifestFile, ignored)) saved.push_back(it->path());
  }
  std::sort(saved.begin(), saved.end());
  return saved;
}

std::string nearest_network(const fs::path& path) {
  return nearest_sibling(path, PathForm::path, [](const fs::path& other) {
    return is_export(other) || path_exists(other / kManifestFile) ||
           !step_checkpoints(other).empty() || !step_checkpoints(other / "checkpoints").empty();
  });
}

void fail_no_network(const fs::path& path, const std::string& near) {
  fail_usage("{}: no such file or folder{}", path.string(),
             near.empty() ? "; moesaic train makes a run, moesaic import a checkpoint" : near);
}

Checkpoint load_newest_checkpoint(const fs::path& given, const LoadOptions& options) {
  if (given.empty()) fail_usage("the name of a run or a checkpoint must not be empty");
  const ForeignCheckpoint* const foreign =
      fs::is_directory(status_of(given)) ? nullptr : find_foreign(given);
  if (foreign != nullptr) {
    fail_usage("{}: a checkpoint of {}; first: {} {} --out FOLDER", given.string(),
               foreign->project, foreign->import_command, given.string());
  }
  if (!path_exists(given)) fail_no_network(given, nearest_network(given));
  if (is_export(given)) return load_export(given, options);
  if (given.extension() == ".onnx") {
    fail_usage("{}: an ONNX file, which ONNX Runtime runs; give the run, or an export to pt2",
               given.string());
  }
  if (!fs::is_directory(status_of(given))) {
    fail_usage(
        "{}: neither a folder of a run, a checkpoint or an export nor an export in a file "
        "(.safetensors, .pt2, TorchScript)",
        given.string());
  }
  // One that lost its manifest is as corrupt as one that lost another file.
  const bool parts = path_exists(given / kStateFile) && path_exists(given / kConfigFile);
  if (parts || path_exists(given / kManifestFile)) return load_checkpoint(given, options);
  for (const fs::path& folder : {given / "checkpoints", given}) {
    if (step_checkpoints(folder).empty()) continue;
    return load_newest_step(folder, [&](const fs::path&) { return options; });
  }
  const bool experiment = fs::is_directory(status_of(given / "train" / "checkpoints"));
  fail_usage(
      "{}: neither a checkpoint (no {}) nor a run (no checkpoints/step_<N>) nor an export (no "
      "preprocess.json){}",
      given.string(), kManifestFile,
      experiment ? "; an experiment holds runs, e.g. " + (given / "train").string() : "");
}

void remove_old_checkpoints(const fs::path& checkpoints, int64_t keep) {
  if (keep < 1) fail_usage("{}: keep at least 1 checkpoint, not {}", checkpoints.string(), keep);
  int64_t complete = 0;
  for (const fs::path& step : step_checkpoints(checkpoints)) {
    // A folder without a manifest is no checkpoint; what a link leads to is someone else's.
    if (fs::is_symlink(step) || !fs::exists(step / kManifestFile)) continue;
    if (complete++ < keep) continue;
    // Renamed first, so that no partially deleted checkpoint is ever visible.
    const fs::path aside = unique_sibling(step);
    std::error_code error;
    fs::rename(step, aside, error);
    if (!error) fs::remove_all(aside, error);
    if (error) log_warning("{}: cannot be deleted: {}", step.string(), error.message());
  }
}

}  // namespace moesaic
