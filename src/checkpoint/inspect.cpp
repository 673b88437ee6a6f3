// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/inspect.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <regex>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/checkpoint/vmoe/arrays.h"
#include "moesaic/formats/safetensors.h"
#include "moesaic/models/registry.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// A file or folder that was named, with what it stands for.
struct Target {
  fs::path checkpoint;  ///< empty for a bare file
  fs::path tensors;
};

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

/// PREFIX, PREFIX.index or one of its shards.
bool is_vmoe_checkpoint(const fs::path& path) {
  static const std::regex kPart(R"(.*(\.index|\.data-\d{5}-of-\d{5}))");
  return std::regex_match(path.filename().string(), kPart) ||
         (!path_exists(path) && path_exists(path.string() + ".index"));
}

Json inspect_vmoe(const fs::path& path) {
  const fs::path prefix = vmoe_prefix(path);
  const vmoe_checkpoint::Reader reader(prefix);
  Json out = {{"path", prefix.string()}, {"kind", "vmoe checkpoint"}};
  out["shards"] = reader.shard_count();
  out["version"] = reader.version();
  int64_t numbers = 0;
  uint64_t bytes = 0;
  Json tensors = Json::array();
  for (const vmoe_checkpoint::Entry& entry : reader.entries()) {
    numbers += element_count(entry.shape);
    bytes += vmoe_checkpoint::byte_count(entry);
    tensors.push_back({{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}});
  }
  out["parameters"] = numbers;
  out["bytes"] = bytes;
  out["tensors"] = std::move(tensors);
  return out;
}

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
    parameters += element_count(entry.shape);
    tensors.push_back({{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}});
  }
  out["parameters"] = parameters;
  out["bytes"] = fs::file_size(path);
  if (!file.metadata().empty()) out["metadata"] = file.metadata();
  out["tensors"] = std::move(tensors);
}

/// The network that a checkpoint's configuration describes; nullptr, and a warning, for one that
/// this program cannot build.
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

/// Unsigned integers as signed ones of their width: equal where they are.
at::ScalarType scalar_type_of(const std::string& dtype) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"bool", at::kBool},        {"int8", at::kChar},     {"uint8", at::kByte},
      {"int16", at::kShort},      {"uint16", at::kShort},  {"int32", at::kInt},
      {"uint32", at::kInt},       {"int64", at::kLong},    {"uint64", at::kLong},
      {"float16", at::kHalf},     {"float32", at::kFloat}, {"float64", at::kDouble},
      {"bfloat16", at::kBFloat16}};
  return kTypes.at(dtype);
}

/// All arrays of a checkpoint of google-research/vmoe, as they are.
TensorMap stored_arrays(const fs::path& path) {
  const vmoe_checkpoint::Reader reader(vmoe_prefix(path));
  TensorMap tensors;
  for (const vmoe_checkpoint::Entry& entry : reader.entries()) {
    at::Tensor out = at::empty(entry.shape, scalar_type_of(entry.dtype));
    reader.read(entry, std::span(static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()));
    tensors[entry.name] = std::move(out);
  }
  return tensors;
}

/// Those of floating point; no network of ours has others.
TensorMap as_float(const VMoEArrays& arrays) {
  TensorMap tensors;
  for (const vmoe_checkpoint::Entry& entry : arrays.entries()) {
    if (entry.dtype.find("float") != std::string::npos) tensors[entry.name] = arrays.read(entry);
  }
  return tensors;
}

TensorMap tensors_of(const fs::path& path) {
  return is_vmoe_checkpoint(path) ? stored_arrays(path) : read_tensors(find_target(path).tensors);
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

/// Lists stay whole, since a list that grew by an item has not changed in all that follow it.
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

/// Experts that pruning left are listed; where they are not, all are there.
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
  if (a.empty() || b.empty()) return list;  // a bare file has no configuration to compare
  add_differences(a, b, "", list);
  mark_kept_experts(a, first, list);
  return list;
}

/// A network's parameters under the reference's names, float32.
TensorMap arrays_of_network(const fs::path& path) {
  const auto config = parse<VMoEConfig>(Value::from_json(model_config(path), "model"), "model");
  return as_float(VMoEStateArrays(config, tensors_of(path), path.string()));
}

/// Where one is a checkpoint of google-research/vmoe and the other a network of ours, as that one's
/// arrays; else each as it is stored.
std::array<TensorMap, 2> comparable(const fs::path& first, const fs::path& second) {
  const bool one = is_vmoe_checkpoint(first), other = is_vmoe_checkpoint(second);
  const bool mixed = one != other && !model_config(one ? second : first).empty();
  if (!mixed) return {tensors_of(first), tensors_of(second)};
  const auto arrays = [](const fs::path& path, bool of_reference) {
    return of_reference ? as_float(VMoECheckpointArrays(path)) : arrays_of_network(path);
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
