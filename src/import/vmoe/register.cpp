// SPDX-License-Identifier: Apache-2.0
// Exports to checkpoints of google-research/vmoe, and tells the rest of the library of them.
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/config/schema.h"
#include "moesaic/export/formats.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "reference.h"

namespace moesaic {
namespace {

using vmoe_checkpoint::Entry;

int64_t removed_experts(const nn::MoELayerImpl& layer) {
  return layer.options().num_experts - static_cast<int64_t>(layer.kept().size());
}

/// Refuses layers that the reference would compute otherwise.
void check_layers(const VMoE& model) {
  for (const auto& [block, layer, unused] : model.moe_blocks()) {
    const auto& options = layer->options();
    const auto refuse = [id = block](const std::string& what, const char* cannot) {
      fail_usage("export: block {} {}, which a V-MoE checkpoint cannot {}; choose safetensors", id,
                 what, cannot);
    };
    if (layer->replacement_outputs.defined())
      refuse("has mean outputs of removed experts", "store");
    if (!layer->merged_into.empty()) refuse("has merged experts", "express");
    if (options.rule.kind == RoutingKind::threshold)
      refuse("selects experts by a threshold", "express");
    if (options.rule.gate != Gate::softmax_all) {
      refuse(fmt::format("has gates '{}'", gate_names().at(static_cast<size_t>(options.rule.gate))),
             "express");
    }
    const int64_t gone = removed_experts(*layer);
    if (gone > 0 && options.rule.pruned == PrunedSelection::reroute) {
      refuse(fmt::format("reroutes tokens of {} removed experts", gone), "express");
    }
  }
}

bool is_vmoe_checkpoint(const fs::path& path) {
  return !prefix_of_part(path.filename()).empty() ||
         (!path_exists(path) && path_exists(path.string() + ".index"));
}

Json inspect_vmoe(const fs::path& path) {
  const fs::path prefix = vmoe_prefix(path);
  const vmoe_checkpoint::Reader reader(prefix);
  int64_t num_parameters = 0;
  uint64_t bytes = 0;
  Json tensors = Json::array();
  for (const Entry& entry : reader.entries()) {
    num_parameters += c10::multiply_integers(entry.shape);
    bytes += vmoe_checkpoint::byte_count(entry);
    tensors.push_back({{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}});
  }
  return {{"path", prefix.string()},        {"kind", "vmoe checkpoint"},
          {"shards", reader.shard_count()}, {"version", reader.version()},
          {"parameters", num_parameters},   {"bytes", bytes},
          {"tensors", std::move(tensors)}};
}

TensorMap stored_arrays(const fs::path& path) {
  const vmoe_checkpoint::Reader reader(vmoe_prefix(path));
  TensorMap tensors;
  for (const Entry& entry : reader.entries()) tensors[entry.name] = stored_array(reader, entry);
  return tensors;
}

/// Returns the floating-point arrays as float32; our networks have no others.
TensorMap as_float(const VMoEArrays& arrays) {
  TensorMap tensors;
  for (const Entry& entry : arrays.entries) {
    if (is_float(entry.dtype)) tensors[entry.name] = arrays.read(entry);
  }
  return tensors;
}

TensorMap arrays_of(const Json& model, TensorMap tensors, const std::string& from) {
  const auto config = parse<VMoEConfig>(Value::from_json(model, "model"), "model");
  return as_float(arrays_of_network(config, std::move(tensors), from));
}

/// Warns of a normalisation other than the reference's, to [-1, 1], since the arrays do not store
/// it.
void warn_of_normalisation(const InputSpec& input) {
  const auto halves = [](const std::vector<double>& values) {
    return std::ranges::all_of(values, [](double x) { return std::abs(x - 0.5) < 1e-6; });
  };
  if (!input.has_images || (halves(input.mean) && halves(input.std))) return;
  log_warning(
      "export: a V-MoE checkpoint stores no normalisation, and imported it means values from -1 to "
      "1; this network's images have mean [{:.4g}] and std [{:.4g}] (a recipe's preprocess.mean "
      "and preprocess.std)",
      fmt::join(input.mean, ", "), fmt::join(input.std, ", "));
}

/// Throws Error (usage) if `prefix`.index or a `prefix`.data-... exists already.
void check_new_vmoe_prefix(const fs::path& prefix, std::string_view what) {
  check_new_file(prefix.string() + ".index", what);
  const fs::path folder = prefix.has_parent_path() ? prefix.parent_path() : fs::path(".");
  for (const auto& item : fs::directory_iterator(folder)) {
    if (prefix_of_part(item.path().filename()) == prefix.filename().string()) {
      fail_usage("{}: '{}' already exists; name a new prefix", what, item.path().string());
    }
  }
}

[[maybe_unused]] const bool kVMoERegistered =
    foreign_checkpoints().add(
        "vmoe", {.project = "google-research/vmoe",
                 .import_command = "moesaic import vmoe --model-config FILE",
                 .matches = is_vmoe_checkpoint,
                 .inspect = inspect_vmoe,
                 .load_stored = stored_arrays,
                 .parameters = [](const fs::path& path) { return as_float(arrays_of_files(path)); },
                 .convert = arrays_of}) &&
    export_formats().add(
        "vmoe",
        {.description = "checkpoint of google-research/vmoe",
         .out_help = "prefix of new files",
         .max_shards = vmoe_checkpoint::kMaxShards,
         .check_out = [](const fs::path& out) { check_new_vmoe_prefix(out, "--out"); },
         .write =
             [](const Model& model, const ExportInfo& info, const ExportOptions& options) {
               vmoe_checkpoint::WriteOptions files{.shards = options.num_shards.value_or(1)};
               files.poll = options.poll;
               export_vmoe(model, options.out, files, info.array_dtypes);
               warn_of_normalisation(info.input);
             }});

}  // namespace

void export_vmoe(const Model& model, const fs::path& prefix,
                 const vmoe_checkpoint::WriteOptions& options,
                 const std::map<std::string, std::string>& array_dtypes) {
  check_new_vmoe_prefix(prefix, "export");
  const auto* vmoe = dynamic_cast<const VMoE*>(&model);
  if (vmoe == nullptr)
    fail_usage("export: format 'vmoe' is for networks of the V-MoE family; choose safetensors");
  const std::string foreign = vmoe_lacks(vmoe->settings());
  if (!foreign.empty()) {
    fail_usage(
        "export: the network has the setting '{}', which a V-MoE checkpoint cannot store; choose "
        "safetensors",
        foreign);
  }
  check_layers(*vmoe);
  int64_t gone = 0;
  for (const MoEBlock& block : vmoe->moe_blocks()) gone += removed_experts(*block.layer);
  if (gone > 0) {
    log_warning("export: {} written as zeros: pruned before", count_text(gone, "expert"));
  }
  const auto config = parse<VMoEConfig>(Value::from_json(model.config(), "model"), "model");
  const VMoEArrays arrays = arrays_of_network(config, state_of(model), "export");
  std::vector<Entry> entries = arrays.entries;
  const auto count = static_cast<int64_t>(entries.size());
  if (options.shards > count) {
    fail_usage("export: {} shards for {} would leave some empty; choose 1 to {}", options.shards,
               count_text(count, "array"), count);
  }
  for (Entry& entry : entries) {
    const auto stored = array_dtypes.find(entry.name);
    if (stored != array_dtypes.end()) entry.dtype = stored->second;
    if (!is_float(entry.dtype)) {
      fail("export: '{}' cannot be written as {}", entry.name, entry.dtype);
    }
  }
  at::Tensor current;
  const auto source = [&](const Entry& entry) {
    current = arrays.read(entry).to(*scalar_type_of(entry.dtype));
    return std::span(static_cast<const std::byte*>(current.const_data_ptr()), current.nbytes());
  };
  vmoe_checkpoint::write(prefix, std::move(entries), source, options);
}

}  // namespace moesaic
