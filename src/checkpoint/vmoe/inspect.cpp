// SPDX-License-Identifier: Apache-2.0
#include "inspect.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <map>
#include <span>
#include <utility>

#include "moesaic/base/path.h"
#include "moesaic/base/pattern.h"
#include "moesaic/checkpoint/vmoe/arrays.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Returns the dtype of an array; unsigned integers become signed, which preserves equality.
at::ScalarType scalar_type_of(const std::string& dtype) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"bool", at::kBool},        {"int8", at::kChar},     {"uint8", at::kByte},
      {"int16", at::kShort},      {"uint16", at::kShort},  {"int32", at::kInt},
      {"uint32", at::kInt},       {"int64", at::kLong},    {"uint64", at::kLong},
      {"float16", at::kHalf},     {"float32", at::kFloat}, {"float64", at::kDouble},
      {"bfloat16", at::kBFloat16}};
  return kTypes.at(dtype);
}

/// Returns the floating-point arrays as float32; our networks have no others.
TensorMap as_float(const VMoEArrays& arrays) {
  TensorMap tensors;
  for (const vmoe_checkpoint::Entry& entry : arrays.entries()) {
    if (entry.dtype.find("float") != std::string::npos) tensors[entry.name] = arrays.read(entry);
  }
  return tensors;
}

}  // namespace

bool is_vmoe_checkpoint(const fs::path& path) {
  static const Pattern kPart(R"((\.index|\.data-\d{5}-of-\d{5})$)");
  return kPart.found_in(path.filename().string()) ||
         (!path_exists(path) && path_exists(path.string() + ".index"));
}

nlohmann::ordered_json inspect_vmoe(const fs::path& path) {
  const fs::path prefix = vmoe_prefix(path);
  const vmoe_checkpoint::Reader reader(prefix);
  Json out = {{"path", prefix.string()}, {"kind", "vmoe checkpoint"}};
  out["shards"] = reader.shard_count();
  out["version"] = reader.version();
  int64_t numbers = 0;
  uint64_t bytes = 0;
  Json tensors = Json::array();
  for (const vmoe_checkpoint::Entry& entry : reader.entries()) {
    numbers += c10::multiply_integers(entry.shape);
    bytes += vmoe_checkpoint::byte_count(entry);
    tensors.push_back({{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}});
  }
  out["parameters"] = numbers;
  out["bytes"] = bytes;
  out["tensors"] = std::move(tensors);
  return out;
}

TensorMap stored_vmoe_arrays(const fs::path& path) {
  const vmoe_checkpoint::Reader reader(vmoe_prefix(path));
  TensorMap tensors;
  for (const vmoe_checkpoint::Entry& entry : reader.entries()) {
    at::Tensor out = at::empty(entry.shape, scalar_type_of(entry.dtype));
    reader.read(entry, std::span(static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()));
    tensors[entry.name] = std::move(out);
  }
  return tensors;
}

TensorMap vmoe_arrays_of(const fs::path& path) {
  return as_float(VMoECheckpointArrays(path));
}

TensorMap vmoe_arrays_of(const Json& model, TensorMap tensors, const std::string& from) {
  const auto config = parse<VMoEConfig>(Value::from_json(model, "model"), "model");
  return as_float(VMoEStateArrays(config, std::move(tensors), from));
}

}  // namespace moesaic
