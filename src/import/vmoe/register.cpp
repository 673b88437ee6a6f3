// SPDX-License-Identifier: Apache-2.0
// Tells the rest of the library of checkpoints of google-research/vmoe.
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <map>
#include <span>

#include "arrays.h"
#include "export.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/inspect.h"
#include "moesaic/config/schema.h"
#include "moesaic/export/formats.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;
using vmoe_checkpoint::Entry;

bool is_vmoe_checkpoint(const fs::path& path) {
  return !prefix_of_part(path.filename()).empty() ||
         (!path_exists(path) && path_exists(path.string() + ".index"));
}

Json inspect_vmoe(const fs::path& path) {
  const fs::path prefix = vmoe_prefix(path);
  const vmoe_checkpoint::Reader reader(prefix);
  int64_t numbers = 0;
  uint64_t bytes = 0;
  Json tensors = Json::array();
  for (const Entry& entry : reader.entries()) {
    numbers += c10::multiply_integers(entry.shape);
    bytes += vmoe_checkpoint::byte_count(entry);
    tensors.push_back({{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}});
  }
  return {{"path", prefix.string()},        {"kind", "vmoe checkpoint"},
          {"shards", reader.shard_count()}, {"version", reader.version()},
          {"parameters", numbers},          {"bytes", bytes},
          {"tensors", std::move(tensors)}};
}

TensorMap stored_arrays(const fs::path& path) {
  const vmoe_checkpoint::Reader reader(vmoe_prefix(path));
  TensorMap tensors;
  for (const Entry& entry : reader.entries()) {
    at::Tensor out = at::empty(entry.shape, scalar_type_of(entry.dtype).value());
    reader.read(entry, std::span(static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()));
    tensors[entry.name] = std::move(out);
  }
  return tensors;
}

/// Returns the floating-point arrays as float32; our networks have no others.
TensorMap as_float(const VMoEArrays& arrays) {
  TensorMap tensors;
  for (const Entry& entry : arrays.entries) {
    if (entry.dtype.find("float") != std::string::npos) tensors[entry.name] = arrays.read(entry);
  }
  return tensors;
}

TensorMap arrays_of(const Json& model, TensorMap tensors, const std::string& from) {
  const auto config = parse<VMoEConfig>(Value::from_json(model, "model"), "model");
  return as_float(arrays_of_network(config, std::move(tensors), from));
}

[[maybe_unused]] const bool kVMoERegistered = [] {
  foreign_checkpoints().add(
      "vmoe", {.project = "google-research/vmoe",
               .import_command = "moesaic import vmoe",
               .is_one = is_vmoe_checkpoint,
               .inspect = inspect_vmoe,
               .stored = stored_arrays,
               .parameters = [](const fs::path& path) { return as_float(arrays_of_files(path)); },
               .converted = arrays_of});
  export_formats().add(
      "vmoe", {.meaning = "what google-research/vmoe reads",
               .out = "the prefix of new files",
               .max_shards = vmoe_checkpoint::kMaxShards,
               .check_out = [](const fs::path& out) { check_new_vmoe_prefix(out, "--out"); },
               .write =
                   [](const Model& model, const ExportInfo& info, const ExportOptions& options) {
                     vmoe_checkpoint::WriteOptions files{.shards = options.shards.value_or(1)};
                     files.poll = options.poll;
                     export_vmoe(model, options.out, files, info.array_dtypes);
                   }});
  return true;
}();

}  // namespace
}  // namespace moesaic
