// SPDX-License-Identifier: Apache-2.0
#include "arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/base/pattern.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using vmoe_checkpoint::Entry;

/// Array that marks parameters: every V-MoE has it; only the optimizer state repeats its name.
constexpr std::string_view kMark = "embedding/kernel";

/// Returns the branch that holds the parameters.
std::string find_branch(const std::vector<vmoe_checkpoint::Array>& entries,
                        const std::string& file) {
  static const Pattern kOptimizer(
      "(^|/)(opt_state|optimizer_state|optimizer/state|state/param_states|trace|mu|nu|momentum|ema)"
      "(/|$)");
  std::vector<std::string> branches;
  for (const Entry& entry : entries) {
    if (!entry.name.ends_with(kMark)) continue;
    const std::string branch = entry.name.substr(0, entry.name.size() - kMark.size());
    if (branch.empty() || branch.ends_with('/')) branches.push_back(branch);
  }
  for (const char* usual : {"", "params/", "target/", "optimizer/target/"}) {
    if (std::ranges::find(branches, usual) != branches.end()) return usual;
  }
  std::erase_if(branches, [](const std::string& name) { return kOptimizer.found_in(name); });
  if (branches.size() > 1) {
    fail("{}: parameters in several places: {}", file, fmt::join(branches, ", "));
  }
  return branches.empty() ? "" : branches.front();
}

/// Converts elements of a file's array, which may be unaligned.
template <class From>
void convert(std::span<const std::byte> bytes, float* out) {
  for (size_t i = 0; i * sizeof(From) < bytes.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = static_cast<float>(value);
  }
}

void convert_to_float(const std::string& dtype, std::span<const std::byte> bytes, float* out) {
  if (dtype == "float32") return convert<float>(bytes, out);
  if (dtype == "float64") return convert<double>(bytes, out);
  if (dtype == "bfloat16") return convert<c10::BFloat16>(bytes, out);
  if (dtype == "float16") return convert<c10::Half>(bytes, out);
  fail("an array of {} cannot be read as float32", dtype);
}

}  // namespace

std::optional<at::ScalarType> scalar_type_of(const std::string& dtype) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"bool", at::kBool},        {"int8", at::kChar},     {"uint8", at::kByte},
      {"int16", at::kShort},      {"uint16", at::kShort},  {"int32", at::kInt},
      {"uint32", at::kInt},       {"int64", at::kLong},    {"uint64", at::kLong},
      {"float16", at::kHalf},     {"float32", at::kFloat}, {"float64", at::kDouble},
      {"bfloat16", at::kBFloat16}};
  const auto found = kTypes.find(dtype);
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

const Entry* VMoEArrays::find(std::string_view name) const {
  const auto found = std::ranges::find(entries, name, &Entry::name);
  return found == entries.end() ? nullptr : &*found;
}

VMoEArrays arrays_of_network(const VMoEConfig& config, TensorMap state, const std::string& from) {
  if (config.encoder.moe.stand_ins) {
    fail_usage(
        "{}: its pruned experts left mean outputs, for which a V-MoE of the reference has no place",
        from);
  }
  VMoEArrays arrays{.from = from};
  std::map<std::string, std::pair<VMoETensor, size_t>> places;
  for (const VMoETensor& tensor : vmoe_tensors(config)) {
    if (!state.contains(tensor.name)) fail("{}: '{}' is missing", from, tensor.name);
    for (size_t a = 0; a < tensor.arrays.size(); ++a) {
      const VMoEArray& array = tensor.arrays[a];
      arrays.entries.push_back({array.name, "float32", array.shape});
      places[array.name] = {tensor, a};
    }
  }
  arrays.read = [config, from, state = std::move(state),
                 places = std::move(places)](const Entry& entry) {
    const auto place = places.find(entry.name);
    if (place == places.end()) fail_usage("{}: no array '{}'", from, entry.name);
    const auto& [tensor, array] = place->second;
    const torch::NoGradGuard no_grad;
    const at::Tensor values = with_removed_experts(config, tensor.name, state.at(tensor.name));
    if (values.sizes() == tensor.shape) return array_of_tensor(tensor, array, values);
    fail("{}: '{}' is {}, the network has {}", from, tensor.name, c10::str(values.sizes()),
         c10::str(at::IntArrayRef(tensor.shape)));
  };
  return arrays;
}

VMoEFileArrays arrays_of_files(const fs::path& path) {
  const fs::path prefix = vmoe_prefix(path);
  const auto reader = std::make_shared<const vmoe_checkpoint::Reader>(prefix);
  VMoEFileArrays arrays{{.from = prefix.string()}};
  arrays.branch = find_branch(reader->entries(), prefix.string() + ".index");
  for (const Entry& entry : reader->entries()) {
    if (!entry.name.starts_with(arrays.branch)) continue;
    arrays.entries.push_back({entry.name.substr(arrays.branch.size()), entry.dtype, entry.shape});
  }
  arrays.others = static_cast<int64_t>(reader->entries().size() - arrays.entries.size());
  arrays.shards = reader->shard_count();
  arrays.read = [reader, from = arrays.from, branch = arrays.branch](const Entry& entry) {
    const Entry stored{branch + entry.name, entry.dtype, entry.shape};
    const size_t size = vmoe_checkpoint::dtype_size(entry.dtype);
    at::Tensor out = at::empty(entry.shape, at::kFloat);
    auto* const values = out.mutable_data_ptr<float>();
    reader->visit(stored, [&](uint64_t first, std::span<const std::byte> run) {
      float* const place = values + first / size;
      convert_to_float(entry.dtype, run, place);
      const std::span<const float> written(place, run.size() / size);
      if (!std::ranges::all_of(written, [](float x) { return std::isfinite(x); })) {
        fail("{}: array '{}' holds NaN, infinity or what float32 cannot hold", from, stored.name);
      }
    });
    return out;
  };
  return arrays;
}

std::string prefix_of_part(const fs::path& path) {
  static const Pattern kEnding(R"((\.index|\.data-\d{5}-of-\d{5})$)");
  const std::string name = path.string();
  const auto ending = kEnding.find(name);
  return ending.empty() ? "" : name.substr(0, name.size() - ending[0].size());
}

fs::path vmoe_prefix(const fs::path& given) {
  if (given.empty()) fail_usage("the prefix of a checkpoint must not be empty");
  const fs::path index = given.string() + ".index";
  if (path_exists(index)) return given;
  if (const std::string prefix = prefix_of_part(given); !prefix.empty()) {
    check_input_file(prefix + ".index");
    return prefix;
  }
  const bool is_folder = path_exists(given) && fs::is_directory(given);
  const fs::path parent = given.has_parent_path() ? given.parent_path() : fs::path(".");
  const fs::path folder = is_folder ? given : parent;
  if (!path_exists(folder)) {
    fail_usage("{}: no such folder{}", folder.string(), nearest_sibling(folder));
  }
  std::vector<std::string> prefixes;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".index") prefixes.push_back(it->path().stem().string());
  }
  std::ranges::sort(prefixes);
  const std::string hint =
      did_you_mean(is_folder ? std::string() : given.filename().string(), prefixes);
  fail_usage("{}: {}{}{}", is_folder ? given.string() : index.string(),
             is_folder ? "a folder, not the prefix of files" : "no such file",
             hint.empty() ? "" : "; ", hint);
}

}  // namespace moesaic
