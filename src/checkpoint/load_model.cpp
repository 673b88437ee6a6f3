// SPDX-License-Identifier: Apache-2.0
#include <torch/types.h>

#include "manifest.h"
#include "moesaic/base/error.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"

namespace moesaic {
namespace {

/// Max number of missing values for which a model is built, so load_state() names the difference.
constexpr double kCheapToBuild = 1 << 26;

double numbers_in(const TensorMap& tensors) {
  double count = 0.0;
  for (const auto& [name, tensor] : tensors) count += static_cast<double>(tensor.numel());
  return count;
}

void check_finite_weights(const TensorMap& tensors, const std::string& from) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_floating_point() || tensor.isfinite().all().item<bool>()) continue;
    fail("{}: '{}' holds NaN or infinity", from, name);
  }
}

}  // namespace

std::shared_ptr<Model> model_of(const Value& config, const TensorMap& tensors,
                                const std::string& from) {
  const double meant = count_parameters(config), found = numbers_in(tensors);
  if (meant > found + kCheapToBuild) {
    fail("{}: holds {:.4g} numbers, but {} means a model of {:.4g}", from, found, config.where(),
         meant);
  }
  std::shared_ptr<Model> model = build_model(config, 0);
  load_state(*model, tensors, from, model->setting_paths().kept_experts);
  return model;
}

std::shared_ptr<Model> model_of(const Checkpoint& checkpoint) {
  // Reads config.json again instead of using `checkpoint`, so that errors have line and column.
  const Document config = stored_document(checkpoint.folder / kConfigFile);
  const std::string from = (checkpoint.folder / kModelFile).string();
  check_finite_weights(checkpoint.model, from);
  return model_of(config.root().at("model"), checkpoint.model, from);
}

std::shared_ptr<Model> load_model(const std::filesystem::path& run_or_checkpoint) {
  return model_of(load_newest_checkpoint(run_or_checkpoint, {.optimizer = false}));
}

}  // namespace moesaic
