// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/inspect.h"

#include <c10/util/accumulate.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <memory>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/formats/safetensors.h"
#include "moesaic/models/registry.h"
#include "vmoe/inspect.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// A file or directory to inspect.
struct Target {
  fs::path checkpoint;  ///< Checkpoint directory; empty for a single file.
  fs::path tensors;
};

Target find_target(const fs::path& path) {
  if (!path_exists(path)) {
    fail_usage("{}: no such file or folder{}", path.string(), nearest_sibling(path));
  }
  if (fs::is_directory(path)) {
    const fs::path folder = resolve_checkpoint(path);
    return {folder, folder / "model.safetensors"};
  }
  return {{}, path};
}

void add_tensors(const fs::path& path, Json& out) {
  const safetensors::File file(path);
  int64_t parameters = 0;
  Json tensors = Json::array();
  for (const auto& entry : file.entries()) {
    parameters += c10::multiply_integers(entry.shape);
    tensors.push_back({{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}});
  }
  out["parameters"] = parameters;
  out["bytes"] = fs::file_size(path);
  if (!file.metadata().empty()) out["metadata"] = file.metadata();
  out["tensors"] = std::move(tensors);
}

/// Returns the network that a checkpoint's configuration describes; logs a warning and returns
/// nullptr if this program cannot build it.
std::shared_ptr<Model> shape_of(const Json& model, const fs::path& from) {
  if (model.empty()) return nullptr;
  try {
    return build_model_shape(Value::from_json(model, (from / "config.json").string()));
  } catch (const Error& error) {
    log_warning("its MoE layers are not known: {}", error.what());
    return nullptr;
  }
}

Json moe_layers(const Json& config, const fs::path& from) {
  Json layers = Json::array();
  const std::shared_ptr<Model> model = shape_of(config, from);
  if (model == nullptr) return layers;
  for (const auto& [block, layer] : model->moe_blocks()) {
    const Json kept = layer->is_pruned() ? Json(layer->kept()) : Json();
    layers.push_back({{"layer", block}, {"experts", layer->options().experts}, {"kept", kept}});
  }
  return layers;
}

void add_config(const fs::path& checkpoint, Json& out) {
  const Checkpoint loaded = load_checkpoint(checkpoint, {.verify = true, .optimizer = false});
  for (const char* key : {"model", "data", "classes"}) {
    if (loaded.config.contains(key)) out[key] = loaded.config[key];
  }
  if (loaded.config.contains("model")) out["moe"] = moe_layers(loaded.config["model"], checkpoint);
  out["state"] = loaded.state;
}

TensorMap tensors_of(const fs::path& path) {
  return is_vmoe_checkpoint(path) ? stored_vmoe_arrays(path)
                                  : read_tensors(find_target(path).tensors);
}

double relative_change(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor a = from.to(torch::kDouble), b = to.to(torch::kDouble);
  const double size = a.norm().item<double>();
  const double moved = (b - a).norm().item<double>();
  return size > 0 ? moved / size : moved;
}

void compare_tensors(const TensorMap& first, const TensorMap& second, Json& out) {
  out = {{"only_in_first", Json::array()},
         {"only_in_second", Json::array()},
         {"different_shape", Json::array()},
         {"changed", Json::array()},
         {"equal", 0}};
  for (const auto& [name, tensor] : second) {
    if (!first.contains(name)) out["only_in_second"].push_back(name);
  }
  int64_t equal = 0;
  for (const auto& [name, a] : first) {
    const auto found = second.find(name);
    if (found == second.end()) {
      out["only_in_first"].push_back(name);
    } else if (a.sizes() != found->second.sizes() ||
               a.scalar_type() != found->second.scalar_type()) {
      out["different_shape"].push_back(
          {{"name", name}, {"first", a.sizes().vec()}, {"second", found->second.sizes().vec()}});
    } else if (torch::equal(a, found->second)) {
      ++equal;
    } else {
      out["changed"].push_back(
          {{"name", name}, {"relative_change", relative_change(a, found->second)}});
    }
  }
  out["equal"] = equal;
}

/// Lists the differing keys, arrays as a whole: an inserted item would make all later ones differ.
void add_differences(const Json& a, const Json& b, const std::string& path, Json& list) {
  if (!a.is_object() || !b.is_object()) {
    if (a != b) list.push_back({{"key", path}, {"first", a}, {"second", b}});
    return;
  }
  for (const auto& [key, value] : a.items()) {
    add_differences(value, b.value(key, Json()), path + "/" + key, list);
  }
  for (const auto& [key, value] : b.items()) {
    if (!a.contains(key)) add_differences(Json(), value, path + "/" + key, list);
  }
}

Json model_config(const fs::path& path) {
  if (is_vmoe_checkpoint(path)) return Json::object();
  const Target target = find_target(path);
  if (target.checkpoint.empty()) return Json::object();
  return load_checkpoint(target.checkpoint, {.verify = false, .optimizer = false})
      .config.value("model", Json::object());
}

/// Marks the missing lists of kept experts, which mean that all experts are present.
void mark_kept_experts(const Json& model, const fs::path& from, Json& differences) {
  const std::shared_ptr<Model> shape = shape_of(model, from);
  if (shape == nullptr || shape->setting_paths().kept_experts.empty()) return;
  std::string setting = "/" + shape->setting_paths().kept_experts;
  std::ranges::replace(setting, '.', '/');
  for (Json& item : differences) {
    const std::string key = item["key"].get<std::string>() + "/";
    if (key.starts_with(setting + "/")) item["absent"] = "all";
  }
}

Json config_difference(const fs::path& first, const fs::path& second) {
  Json list = Json::array();
  const Json a = model_config(first), b = model_config(second);
  if (a.empty() || b.empty()) return list;  // A single file has no configuration.
  add_differences(a, b, "", list);
  mark_kept_experts(a, first, list);
  return list;
}

/// Returns the tensors of both. If only one is a checkpoint of google-research/vmoe, the other is
/// converted to its arrays; otherwise each is returned as stored.
std::array<TensorMap, 2> comparable(const fs::path& first, const fs::path& second) {
  const bool one = is_vmoe_checkpoint(first), other = is_vmoe_checkpoint(second);
  const bool mixed = one != other && !model_config(one ? second : first).empty();
  if (!mixed) return {tensors_of(first), tensors_of(second)};
  const auto arrays = [](const fs::path& path, bool of_reference) {
    return of_reference ? vmoe_arrays_of(path)
                        : vmoe_arrays_of(model_config(path), tensors_of(path), path.string());
  };
  return {arrays(first, one), arrays(second, other)};
}

}  // namespace

Json inspect(const fs::path& path) {
  if (is_vmoe_checkpoint(path)) return inspect_vmoe(path);
  const Target target = find_target(path);
  Json out;
  out["path"] = (target.checkpoint.empty() ? target.tensors : target.checkpoint).string();
  out["kind"] = target.checkpoint.empty() ? "safetensors" : "checkpoint";
  if (!target.checkpoint.empty()) add_config(target.checkpoint, out);
  add_tensors(target.tensors, out);
  return out;
}

Json inspect_difference(const fs::path& first, const fs::path& second) {
  Json out;
  const std::array<TensorMap, 2> both = comparable(first, second);
  compare_tensors(both[0], both[1], out);
  out["config"] = config_difference(first, second);
  return out;
}

}  // namespace moesaic
