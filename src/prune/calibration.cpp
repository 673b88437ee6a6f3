// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/calibration.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/formats/safetensors.h"

namespace moesaic {
namespace {

constexpr const char *kFormatKey = "format", *kCalibrationFormat = "moesaic.calibration.1";

/// Calls `visit` with the name and the tensor of everything that a layer's statistics hold.
void for_each_statistic(LayerUse& use, const auto& visit) {
  for (auto& [powers, sum] : use.sums) {
    visit(fmt::format("sums.{}.{}", powers.gate, powers.norm), sum);
  }
  visit("selections", use.selections);
  visit("first_gates", use.first_gates);
  visit("outputs_Eo", use.outputs_Eo);
  visit("gated_Eo", use.gated_Eo);
  visit("products_EE", use.products_EE);
}

void check_source(const fs::path& path, const CalibrationSource& wanted) {
  const CalibrationSource found = safetensors::File(path).metadata();
  const auto format = found.find(kFormatKey);
  if (format == found.end() || format->second != kCalibrationFormat) {
    fail_usage("{}: is no calibration; make one by prune --save-calibration", path.string());
  }
  for (const auto& [name, value] : wanted) {
    const auto own = found.find(name);
    const std::string has = own == found.end() ? "none" : own->second;
    if (has == value) continue;
    fail_usage(
        "{}: its calibration is of other {}: {}, not {}; make it again by --save-calibration",
        path.string(), name, has, value);
  }
}

}  // namespace

void save_calibration(const fs::path& path, const ExpertUse& use, const CalibrationSource& source) {
  TensorMap tensors;
  for (const auto& [block, of_block] : use) {
    LayerUse layer = of_block;
    const std::string prefix = fmt::format("{}.", block);
    tensors[prefix + "tokens"] = torch::tensor({layer.tokens}, at::kLong);
    for_each_statistic(layer, [&](const std::string& name, const at::Tensor& tensor) {
      if (tensor.defined()) tensors[prefix + name] = tensor;
    });
  }
  CalibrationSource metadata = source;
  metadata[kFormatKey] = kCalibrationFormat;
  write_tensors(path, tensors, metadata);
}

ExpertUse read_calibration(const fs::path& path, const CalibrationSource& source,
                           const Model& model) {
  check_source(path, source);
  const TensorMap tensors = read_tensors(path);
  const auto tensor_of = [&](const std::string& name, const std::vector<int64_t>& shape,
                             at::ScalarType type) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.sizes() != at::IntArrayRef(shape) ||
        found->second.scalar_type() != type || !all_finite(found->second)) {
      fail("{}: '{}' is missing, of another shape or not finite", path.string(), name);
    }
    return found->second;
  };
  ExpertUse use;
  for (const MoEBlock& block : model.moe_blocks()) {
    const int64_t experts = block.layer->options().num_experts;
    const std::string prefix = fmt::format("{}.", block.block);
    LayerUse& layer = use[block.block] = empty_use(experts);
    layer.outputs_Eo = layer.gated_Eo =
        at::empty({experts, block.layer->experts->outputs()}, at::kDouble);
    layer.tokens = tensor_of(prefix + "tokens", {1}, at::kLong).item<int64_t>();
    for_each_statistic(layer, [&](const std::string& name, at::Tensor& tensor) {
      tensor = tensor_of(prefix + name, tensor.sizes().vec(), at::kDouble);
    });
  }
  return use;
}

}  // namespace moesaic
