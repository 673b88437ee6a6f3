// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moesaic/base/error.h"
#include "moesaic/base/memory.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/input.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/memory.h"
#include "moesaic/train/places.h"

namespace moesaic {
namespace {

constexpr LoadOptions kConfigOnly = {.verify = false, .model = false, .optimizer = false};

bool gives_new_head(const RunConfig& config) {
  return config.phases.front().on_entry.new_head;
}

Checkpoint load_init(const RunConfig& config, const LoadOptions& options) {
  const std::string place = place_of(config.source, {"init"});
  if (!path_exists(config.init)) {
    fail_usage("{}: init '{}' is not there{}; make it first, or give init=RUN_OR_CHECKPOINT", place,
               config.init, nearest_sibling(config.init));
  }
  return at_place(place, [&] { return load_newest_checkpoint(config.init, options); });
}

double bytes_of(const TensorMap& tensors) {
  double sum = 0.0;
  for (const auto& [unused, tensor] : tensors) sum += static_cast<double>(tensor.nbytes());
  return sum;
}

}  // namespace

RunStart::RunStart(const RunConfig& config) : config_(config) {
  if (!config.init.empty()) init_ = load_init(config, {.optimizer = false});
  if (config.model.is_null()) config_.model = model_config(*init_);
  shape_ = build_model_shape(config_.model);
}

std::shared_ptr<Model> RunStart::model() const {
  check_training_memory(config_, *shape_);
  const auto numbers = static_cast<double>(shape_->parameter_count());
  const auto seed = static_cast<uint64_t>(config_.seed);
  if (!init_) return build_model(config_.model, seed, numbers);
  check_memory(numbers * sizeof(float) + bytes_of(init_->model),
               fmt::format("a model of {:.4g} parameters beside the weights of init", numbers),
               config_.model.where());
  const std::shared_ptr<Model> source = shape_of(*init_);
  const std::shared_ptr<Model> model = build_model(config_.model, seed, numbers);
  model->initialise_from(*source, init_->model, gives_new_head(config_), config_.init);
  return model;
}

std::string RunStart::mark() const {
  if (!init_) return "";
  return fmt::format("{} of {}", hash_of(init_->model).substr(0, 16), fmt::join(classes(), ", "));
}

std::vector<std::string> RunStart::classes() const {
  return init_ ? class_names_of(*init_) : std::vector<std::string>();
}

std::vector<std::string> initial_classes(const RunConfig& config) try {
  if (config.init.empty()) return {};
  return class_names_of(load_init(config, kConfigOnly));
} catch (const Error&) {
  return {};
}

std::shared_ptr<Model> build_initial_shape(const RunConfig& config) {
  // A network that is described needs no checkpoint, which in a plan may not even be there.
  if (!config.model.is_null()) return build_model_shape(config.model);
  return build_model_shape(model_config(load_init(config, kConfigOnly)));
}

std::shared_ptr<Model> build_initial_model(const RunConfig& config) {
  return RunStart(config).model();
}

void check_initial_weights(const RunConfig& config) {
  if (config.init.empty()) return;
  const Value init = model_config(load_init(config, {.model = false, .optimizer = false}));
  const std::shared_ptr<Model> source = build_model_shape(init);
  const auto shape = build_model_shape(config.model.is_null() ? init : config.model);
  shape->initialise_from(*source, state_of(*source), gives_new_head(config), config.init);
}

}  // namespace moesaic
