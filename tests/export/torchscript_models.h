// SPDX-License-Identifier: Apache-2.0
// Networks whose TorchScript forms are tested.
#pragma once

#include <gtest/gtest.h>
#include <torch/script.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "export/toy_info.h"
#include "moesaic/config/document.h"
#include "moesaic/export/formats.h"
#include "support/models.h"
#include "support/small_vmoe.h"

#define NEEDS_PYTHON()                                       \
  if (::moesaic::testing::python_here().empty()) {           \
    GTEST_SKIP() << "MOESAIC_VENV has no Python with torch"; \
  }

namespace moesaic::testing {

/// The Python of tools/setup.sh's environment, "" where there is none.
inline std::string python_here() {
  const char* venv = std::getenv("MOESAIC_VENV");
  const auto python = std::filesystem::path(venv == nullptr ? "" : venv) / "bin/python";
  return std::filesystem::exists(python) ? python.string() : "";
}

inline at::Tensor forward(torch::jit::Module& script, const at::Tensor& images) {
  const torch::NoGradGuard no_grad;
  return script.forward({images}).toTensor();
}

/// The network of a configuration in JSON, in evaluation.
inline std::shared_ptr<Model> network_of(const std::string& config) {
  auto model = model_from(config);
  model->eval();
  return model;
}

inline at::Tensor images_for(const Model& model, int64_t batch, uint64_t seed) {
  std::vector<int64_t> shape = model.input_shape();
  shape.insert(shape.begin(), batch);
  return randn(shape, seed, torch::kFloat);
}

inline void keep_everywhere(const Model& model, const std::vector<int64_t>& ids,
                            bool mean_replacement = false) {
  for (MoEBlock& block : model.moe_blocks()) {
    at::Tensor means;
    if (mean_replacement)
      means = randn({block.layer->options().num_experts, 12}, 31, torch::kFloat);
    block.layer->keep_experts(ids, means);
  }
}

struct ScriptVariant {
  std::string name, gate = "softmax_all", classifier = "token";
  double capacity_factor = 0.0;
  int64_t group_size = 0, selected = 2, multiple_of = 4;
  std::vector<int64_t> kept = {};
  bool mean_replacement = false;
  bool qk_norm = false, bfloat16 = false;
  int64_t representation = 0, capacity = 0, classes = 5;
  Size2d patch = 2;
  std::string position = kLearned;
  std::optional<bool> head_qk_norm = {};
  std::optional<double> evaluation_capacity_factor = {};
  std::string router = {};  ///< The router's settings as JSON, instead of those above.
  int64_t members = 1;
  std::vector<nn::StemLayer> stem = {};
};

inline void PrintTo(const ScriptVariant& variant, std::ostream* out) {
  *out << variant.name;
}

inline std::shared_ptr<VMoE> build_variant(const ScriptVariant& variant) {
  VMoEConfig config = small_vmoe_config();
  config.classifier = variant.classifier;
  config.representation_size = variant.representation;
  config.encoder.attention_qk_norm = variant.qk_norm;
  config.map_head_qk_norm = variant.head_qk_norm;
  config.encoder.moe.router.bfloat16 = variant.bfloat16;
  config.encoder.moe.group_size = variant.group_size;
  config.encoder.moe.router.gate = gate_from_name(variant.gate);
  config.encoder.moe.router.k = variant.selected;
  config.num_classes = variant.classes;
  config.patch_size = variant.patch;
  config.stem = variant.stem;
  config.encoder.position_emb.name = variant.position;
  config.encoder.moe.router.capacity.rows = variant.capacity;
  config.encoder.moe.router.capacity.factor = variant.capacity_factor;
  config.encoder.moe.router.capacity.multiple_of = variant.multiple_of;
  config.encoder.moe.router.capacity.evaluation_factor = variant.evaluation_capacity_factor;
  if (!variant.router.empty()) {
    config.encoder.moe.router =
        parse<VMoERouterConfig>(Document::from_text(variant.router, "router.json").root());
  }
  if (variant.members > 1) {
    config.name = kE3;
    config.encoder.moe.ensemble_size = variant.members;
  }
  auto model = small_vmoe(config);
  if (!variant.kept.empty()) keep_everywhere(*model, variant.kept, variant.mean_replacement);
  model->eval();
  return model;
}

inline const ExportInfo kScriptInfo = toy_info();

}  // namespace moesaic::testing
