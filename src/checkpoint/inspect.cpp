// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/inspect.h"

#include <c10/util/accumulate.h>
#include <torch/torch.h>

#include <algorithm>

#include "manifest.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/config/difference.h"
#include "moesaic/models/registry.h"

namespace moesaic {

Registry<ForeignCheckpoint>& foreign_checkpoints() {
  static Registry<ForeignCheckpoint> list("kind of checkpoint", {});
  return list;
}

const ForeignCheckpoint* find_foreign(const fs::path& path) {
  for (const auto& [name, kind] : foreign_checkpoints().entries()) {
    if (kind.matches(path)) return &kind;
  }
  return nullptr;
}

namespace {

/// Returns the network of an export in one file, nothing for a file of other tensors.
std::optional<Checkpoint> exported_at(const fs::path& file, const LoadOptions& options) {
  const safetensors::File weights(file);
  const auto& metadata = weights.metadata();
  if (!metadata.contains("config") || !metadata.contains("preprocess")) return std::nullopt;
  return load_export(file, options);
}

/// Returns the checkpoint of a run, a checkpoint directory or an export, nothing for another file.
/// Throws Error (usage) where there is nothing.
std::optional<Checkpoint> checkpoint_at(const fs::path& path, const LoadOptions& options) {
  if (!path_exists(path)) fail_no_network(path, nearest_sibling(path));
  // That of ONNX is refused with what to give instead.
  if (fs::is_directory(path) || path.extension() == ".onnx") {
    return load_newest_checkpoint(path, options);
  }
  if (is_torchscript(path)) return load_export(path, options);
  check_input_file(path);
  if (path.extension() == ".safetensors") return exported_at(path, options);
  if (!is_index(path)) {
    check_tensor_file(path,
                      "another kind that is read here: a run, a checkpoint, an export, an index of "
                      "safetensors files, the prefix of a vmoe checkpoint");
  }
  return std::nullopt;
}

/// Describes the tensors of a file or an index; `loaded`, if given, are those of which no header
/// tells.
void add_tensors(const fs::path& path, const TensorMap* loaded, Json& out) {
  int64_t parameters = 0;
  uint64_t bytes = 0;
  Json tensors = Json::array();
  const auto add = [&](const std::string& name, const std::string& dtype,
                       const std::vector<int64_t>& shape) {
    parameters += c10::multiply_integers(shape);
    tensors.push_back({{"name", name}, {"dtype", dtype}, {"shape", shape}});
  };
  const TensorFiles files = loaded == nullptr ? open_tensors(path) : TensorFiles{{path}, {}};
  for (const StoredTensor& tensor : files.tensors) {
    for (const TensorPiece& piece : tensor.pieces) bytes += piece.bytes().size();
    add(tensor.name, tensor.dtype, tensor.shape);
  }
  for (const auto& [name, tensor] : loaded == nullptr ? TensorMap() : *loaded) {
    bytes += tensor.nbytes();
    const std::string where = path.string() + ": " + name;
    add(name, dtype_name(tensor.scalar_type(), where), tensor.sizes().vec());
  }
  out["parameters"] = parameters;
  out["bytes"] = bytes;
  out["file_bytes"] = file_bytes(files.paths);
  if (loaded == nullptr && is_index(path)) out["files"] = files.paths.size();
  if (!files.metadata.empty()) out["metadata"] = files.metadata;
  out["tensors"] = std::move(tensors);
}

/// Returns the network that a checkpoint's configuration describes; logs a warning and returns
/// nullptr if this program cannot build it.
std::shared_ptr<Model> meta_model_of(const Json& model, const fs::path& from) {
  if (model.empty()) return nullptr;
  try {
    return build_meta_model(Value::from_json(model, (from / "config.json").string()));
  } catch (const Error& error) {
    log_warning("the MoE layers are not known: {}", error.what());
    return nullptr;
  }
}

/// Returns whether the network is of a family that another program has registered.
bool is_of_another_program(const Json& model) {
  const std::vector<std::string> known = model_names();
  const Json name = model.value("name", Json());
  return name.is_string() && std::ranges::find(known, name.get<std::string>()) == known.end();
}

/// Throws Error (failure) for an export that no network can be built of: unlike those of a
/// checkpoint, its files have no hashes, and one may be in the place of another.
Json moe_layers(const Checkpoint& checkpoint) {
  Json layers = Json::array();
  const Json& config = checkpoint.config.at("model");
  const bool built = is_export(checkpoint.folder) && !is_of_another_program(config);
  const std::shared_ptr<Model> model = built ? stored_meta_model(model_config(checkpoint))
                                             : meta_model_of(config, checkpoint.folder);
  if (model == nullptr) return layers;
  for (const auto& [block, layer, unused] : model->moe_blocks()) {
    const Json kept = layer->is_pruned() ? Json(layer->kept()) : Json();
    layers.push_back({{"layer", block}, {"experts", layer->options().num_experts}, {"kept", kept}});
  }
  return layers;
}

void add_config(const Checkpoint& checkpoint, Json& out) {
  const Json& config = checkpoint.config;
  for (const char* key : {"model", "data", kInputKey, "classes"}) {
    if (config.contains(key)) out[key] = config[key];
  }
  const Json::json_pointer classes("/input/classes");
  if (config.contains(classes)) out["classes"] = config.at(classes);
  if (config.contains("model")) out["moe"] = moe_layers(checkpoint);
  out["state"] = checkpoint.state;
}

double relative_change(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor a = from.to(torch::kDouble), b = to.to(torch::kDouble);
  const double size = a.norm().item<double>(), moved = (b - a).norm().item<double>();
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

/// One of two things that are compared. A checkpoint of another project has neither a configuration
/// nor tensors here, a single file has no configuration.
struct Side {
  fs::path path;
  const ForeignCheckpoint* foreign = nullptr;
  Json model = Json::object();  ///< Configuration of the network.
  TensorMap tensors = {};
};

Side read_side(const fs::path& path, bool trust) {
  if (const auto* foreign = find_foreign(path)) return {.path = path, .foreign = foreign};
  std::optional<Checkpoint> checkpoint =
      checkpoint_at(path, {.load_optimizer = false, .trust = trust});
  if (!checkpoint) return {.path = path, .tensors = read_tensors(path)};
  Json model = checkpoint->config.value("model", Json::object());
  // Older ones lack later settings and name some otherwise.
  if (!is_of_another_program(model)) {
    if (const auto network = meta_model_of(model, path)) model = network->config();
  }
  return {.path = path, .model = std::move(model), .tensors = std::move(checkpoint->model)};
}

/// Marks the missing lists of kept experts, which mean that all experts are present.
void mark_kept_experts(const Json& model, const fs::path& from, Json& differences) {
  const std::shared_ptr<Model> shape = meta_model_of(model, from);
  if (shape == nullptr || shape->setting_paths().kept_experts.empty()) return;
  std::string setting = "/" + shape->setting_paths().kept_experts;
  std::ranges::replace(setting, '.', '/');
  for (Json& item : differences) {
    const std::string key = item["key"].get<std::string>() + "/";
    if (key.starts_with(setting + "/")) item["absent"] = "all";
  }
}

Json config_difference(const Side& first, const Side& second) {
  Json list = Json::array();
  if (first.model.empty() || second.model.empty()) return list;
  // An item that is inserted into a list would make all later ones differ.
  for (Difference& one :
       differences(first.model, second.model, {.separator = '/', .compares_whole_lists = true})) {
    list.push_back({{"key", "/" + one.path}, {"first", one.before}, {"second", one.after}});
  }
  mark_kept_experts(first.model, first.path, list);
  return list;
}

/// Returns the tensors of one side. If only one is a checkpoint of another project, `mixed`, the
/// other's network is converted to its arrays; otherwise each is returned as stored.
TensorMap comparable(Side& side, const ForeignCheckpoint* mixed) {
  if (side.foreign != nullptr) {
    return mixed ? side.foreign->parameters(side.path) : side.foreign->load_stored(side.path);
  }
  if (mixed == nullptr) return std::move(side.tensors);
  return mixed->convert(side.model, std::move(side.tensors), side.path.string());
}

}  // namespace

Json inspect(const fs::path& path, bool trust) {
  if (const auto* foreign = find_foreign(path)) return foreign->inspect(path);
  const bool pickled = is_pickled(path);
  const auto checkpoint =
      checkpoint_at(path, {.load_model = pickled, .load_optimizer = false, .trust = trust});
  Json out;
  out["path"] = (checkpoint ? checkpoint->folder : path).string();
  const bool folder = fs::is_directory(path);
  const bool exported = checkpoint && is_export(checkpoint->folder);
  const char* const file = is_torchscript(path) ? "torchscript" : "safetensors";
  out["kind"] = !folder ? file : exported ? "export" : "checkpoint";
  if (checkpoint) add_config(*checkpoint, out);
  if (exported) out.erase("state");
  add_tensors(checkpoint ? weights_file(*checkpoint) : path, pickled ? &checkpoint->model : nullptr,
              out);
  return out;
}

Json inspect_difference(const fs::path& first, const fs::path& second, bool trust) {
  Side a = read_side(first, trust), b = read_side(second, trust);
  const ForeignCheckpoint* mixed = nullptr;
  if (a.foreign == nullptr && !a.model.empty()) mixed = b.foreign;
  if (b.foreign == nullptr && !b.model.empty()) mixed = a.foreign;
  Json out;
  compare_tensors(comparable(a, mixed), comparable(b, mixed), out);
  out["config"] = config_difference(a, b);
  return out;
}

}  // namespace moesaic
