// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/calibration.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <span>

#include "moesaic/base/error.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/formats/safetensors.h"

namespace moesaic {
namespace {

constexpr const char *kFormatKey = "format", *kHashKey = "sha256",
                     *kCalibrationFormat = "moesaic.calibration.2";
/// Max numbers of a file: whole ones that float64 holds, and those whose products are finite.
constexpr double kMaxCount = 9e15, kMaxNumber = 1e100;

/// Calls `visit` with the name and the tensor of everything that a layer's statistics hold.
void for_each_statistic(LayerStatistics& statistics, const auto& visit) {
  for (auto& [powers, sum] : statistics.sums) {
    visit(fmt::format("sums.{}.{}", powers.gate, powers.norm), sum);
  }
  visit("selections", statistics.selections);
  visit("first_gates", statistics.first_gates);
  visit("outputs_Eo", statistics.outputs_Eo);
  visit("gated_Eo", statistics.gated_Eo);
  visit("products_EE", statistics.products_EE);
}

void check_source(const fs::path& path, const CalibrationSource& found,
                  const CalibrationSource& wanted) {
  const auto value_in = [](const CalibrationSource& source, const std::string& name) {
    const auto value = source.find(name);
    return value == source.end() ? "none" : value->second;
  };
  if (value_in(found, kFormatKey) != kCalibrationFormat) {
    fail_usage(
        "{}: not a calibration file of this version; record one with prune --save-calibration",
        path.string());
  }
  for (const auto& [name, value] : wanted) {
    if (name == kCalibratedCheckpointKey || value_in(found, name) == value) continue;
    const std::string shown = name == "network" ? kCalibratedCheckpointKey : name;
    fail_usage(
        "{}: recorded with another {}: {}, not {}; record it again: prune with "
        "--save-calibration NEW.safetensors in place of --calibration",
        path.string(), name, value_in(found, shown), value_in(wanted, shown));
  }
}

}  // namespace

CalibrationSource network_source(const Checkpoint& checkpoint) {
  const std::string network = hash_of(checkpoint.model) + checkpoint.config.at("model").dump();
  const std::string hash = sha256_hex(std::as_bytes(std::span(network))).substr(0, 16);
  const Json step = value_at(checkpoint.state, "/step");
  const std::string at = step.is_null() ? "" : fmt::format("step {}, ", step.dump());
  return {
      {kCalibratedCheckpointKey, fmt::format("{} ({}{})", checkpoint.folder.string(), at, hash)},
      {"network", hash}};
}

void save_calibration(const fs::path& path, const ExpertStatistics& statistics,
                      const CalibrationSource& source) {
  TensorMap tensors;
  for (const auto& [block, of_block] : statistics) {
    LayerStatistics layer = of_block;
    const std::string prefix = fmt::format("{}.", block);
    tensors[prefix + "tokens"] = torch::tensor({layer.tokens}, at::kLong);
    for_each_statistic(layer, [&](const std::string& name, const at::Tensor& tensor) {
      if (tensor.defined()) tensors[prefix + name] = tensor;
    });
  }
  CalibrationSource metadata = source;
  metadata[kFormatKey] = kCalibrationFormat;
  metadata[kHashKey] = hash_of(tensors);
  write_tensors(path, tensors, metadata);
}

ExpertStatistics read_calibration(const fs::path& path, const CalibrationSource& source,
                                  const Model& model) {
  check_input_file(path);
  const CalibrationSource metadata = safetensors::File(path).metadata();
  check_source(path, metadata, source);
  const TensorMap tensors = read_tensors(path);
  const auto hash = metadata.find(kHashKey);
  if (hash == metadata.end() || hash->second != hash_of(tensors)) {
    fail("{}: the file was altered: its SHA-256 is not that of its tensors; record it again",
         path.string());
  }
  const auto tensor_of = [&](const std::string& name, const std::vector<int64_t>& shape,
                             at::ScalarType type, bool counts) {
    const double most = counts ? kMaxCount : kMaxNumber, least = counts ? 0.0 : -kMaxNumber;
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.sizes() != at::IntArrayRef(shape) ||
        found->second.scalar_type() != type ||
        !found->second.ge(least).logical_and(found->second.le(most)).all().item<bool>()) {
      fail("{}: '{}' is missing, of another shape or not from {:g} to {:g}; record it again",
           path.string(), name, least, most);
    }
    return found->second;
  };
  ExpertStatistics statistics;
  for (const MoEBlock& block : model.moe_blocks()) {
    const int64_t experts = block.layer->options().num_experts;
    const std::string prefix = fmt::format("{}.", block.block);
    LayerStatistics& layer = statistics[block.block] = empty_statistics(experts);
    layer.outputs_Eo = layer.gated_Eo =
        at::empty({experts, block.layer->experts->num_outputs()}, at::kDouble);
    layer.tokens = tensor_of(prefix + "tokens", {1}, at::kLong, true).item<int64_t>();
    for_each_statistic(layer, [&](const std::string& name, at::Tensor& tensor) {
      const bool counts = name == "selections" || name == "sums.0.0";
      tensor = tensor_of(prefix + name, tensor.sizes().vec(), at::kDouble, counts);
    });
  }
  return statistics;
}

}  // namespace moesaic
