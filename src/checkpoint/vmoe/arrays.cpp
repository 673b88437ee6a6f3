// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/vmoe/arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/base/pattern.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using vmoe_checkpoint::Entry;

/// Array that marks parameters: every V-MoE has it; only the optimizer state repeats its name.
constexpr std::string_view kMark = "embedding/kernel";

std::vector<std::string> branches_with_mark(const std::vector<Entry>& entries) {
  std::vector<std::string> branches;
  for (const Entry& entry : entries) {
    if (!entry.name.ends_with(kMark)) continue;
    const std::string branch = entry.name.substr(0, entry.name.size() - kMark.size());
    if (branch.empty() || branch.ends_with('/')) branches.push_back(branch);
  }
  return branches;
}

bool of_optimizer(const std::string& branch) {
  static const Pattern kState(
      "(^|/)(opt_state|optimizer_state|optimizer/state|state/param_states|trace|mu|nu|momentum|ema)"
      "(/|$)");
  return kState.found_in(branch);
}

/// Returns the branch that holds the parameters.
std::string find_branch(const std::vector<Entry>& entries, const std::string& file) {
  std::vector<std::string> branches = branches_with_mark(entries);
  for (const char* usual : {"", "params/", "target/", "optimizer/target/"}) {
    if (std::find(branches.begin(), branches.end(), usual) != branches.end()) return usual;
  }
  std::erase_if(branches, of_optimizer);
  if (branches.size() > 1) {
    fail("{}: parameters in several places: {}", file, fmt::join(branches, ", "));
  }
  return branches.empty() ? "" : branches.front();
}

std::vector<std::string> prefixes_in(const fs::path& folder) {
  std::vector<std::string> prefixes;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".index") prefixes.push_back(it->path().stem().string());
  }
  std::sort(prefixes.begin(), prefixes.end());
  return prefixes;
}

/// Converts elements of a file's array, which may be unaligned.
template <class From, class Convert>
void convert(std::span<const std::byte> bytes, float* out, Convert&& to_float) {
  for (size_t i = 0; i * sizeof(From) < bytes.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = to_float(value);
  }
}

void convert_to_float(const std::string& dtype, std::span<const std::byte> bytes, float* out) {
  if (dtype == "float32") {
    std::memcpy(out, bytes.data(), bytes.size());
  } else if (dtype == "float64") {
    convert<double>(bytes, out, [](double x) { return static_cast<float>(x); });
  } else if (dtype == "bfloat16") {
    convert<uint16_t>(bytes, out,
                      [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16u); });
  } else if (dtype == "float16") {
    convert<uint16_t>(bytes, out,
                      [](uint16_t x) { return c10::detail::fp16_ieee_to_fp32_value(x); });
  } else {
    fail("an array of {} cannot be read as float32", dtype);
  }
}

}  // namespace

fs::path vmoe_prefix(const fs::path& given) {
  static const Pattern kEnding(R"((\.index|\.data-\d{5}-of-\d{5})$)");
  if (given.empty()) fail_usage("the prefix of a checkpoint must not be empty");
  const fs::path index = given.string() + ".index";
  if (path_exists(index)) return given;
  const std::string name_given = given.string();
  if (const auto ending = kEnding.find(name_given); !ending.empty()) {
    const std::string prefix = name_given.substr(0, name_given.size() - ending[0].size());
    check_input_file(prefix + ".index");
    return prefix;
  }
  const bool is_folder = path_exists(given) && fs::is_directory(given);
  const fs::path parent = given.has_parent_path() ? given.parent_path() : fs::path(".");
  const fs::path folder = is_folder ? given : parent;
  if (!path_exists(folder)) {
    fail_usage("{}: no such folder{}", folder.string(), nearest_sibling(folder));
  }
  const std::string name = is_folder ? std::string() : given.filename().string();
  const std::string hint = did_you_mean(name, prefixes_in(folder));
  fail_usage("{}: {}{}{}", is_folder ? given.string() : index.string(),
             is_folder ? "a folder, not the prefix of files" : "no such file",
             hint.empty() ? "" : "; ", hint);
}

VMoECheckpointArrays::VMoECheckpointArrays(const fs::path& prefix)
    : prefix_(vmoe_prefix(prefix)),
      reader_(prefix_),
      branch_(find_branch(reader_.entries(), prefix_.string() + ".index")) {
  for (const Entry& entry : reader_.entries()) {
    if (!entry.name.starts_with(branch_)) continue;
    entries_.push_back({entry.name.substr(branch_.size()), entry.dtype, entry.shape});
  }
}

at::Tensor VMoECheckpointArrays::read(const Entry& entry) const {
  const Entry stored{branch_ + entry.name, entry.dtype, entry.shape};
  const size_t size = vmoe_checkpoint::dtype_size(entry.dtype);
  at::Tensor out = at::empty(entry.shape, at::kFloat);
  auto* const values = out.mutable_data_ptr<float>();
  reader_.visit(stored, [&](uint64_t first, std::span<const std::byte> run) {
    float* const place = values + first / size;
    convert_to_float(entry.dtype, run, place);
    const std::span<const float> written(place, run.size() / size);
    if (!std::ranges::all_of(written, [](float x) { return std::isfinite(x); })) {
      fail("{}: array '{}' holds NaN, infinity or what float32 cannot hold", from(), stored.name);
    }
  });
  return out;
}

}  // namespace moesaic
