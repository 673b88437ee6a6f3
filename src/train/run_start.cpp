// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_start.h"

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/models/registry.h"
#include "moesaic/train/memory.h"
#include "moesaic/train/places.h"

namespace moesaic {
namespace {

bool gives_new_head(const RunConfig& config) {
  return config.phases.front().on_entry.new_head;
}

}  // namespace

RunStart::RunStart(const RunConfig& config) : config_(config) {
  if (config.init.empty()) return;
  const std::string place = place_of(config.source, {"init"});
  if (!path_exists(config.init)) {
    fail_usage("{}: init '{}' is not there{}; make it first, or give init=RUN_OR_CHECKPOINT", place,
               config.init, nearest_sibling(config.init));
  }
  init_ =
      at_place(place, [&] { return load_newest_checkpoint(config.init, {.optimizer = false}); });
}

std::shared_ptr<Model> RunStart::shape() const {
  if (!config_.model.is_null()) return build_model_shape(config_.model);
  return build_model_shape(stored_document(init_->folder / "config.json").root().at("model"));
}

std::shared_ptr<Model> RunStart::model() const {
  if (config_.model.is_null()) return model_of(*init_);
  check_training_memory(config_, *build_model_shape(config_.model));
  const auto model = build_model(config_.model, static_cast<uint64_t>(config_.seed));
  if (init_) model->initialise_from(*model_of(*init_), gives_new_head(config_), config_.init);
  return model;
}

std::shared_ptr<Model> build_initial_shape(const RunConfig& config) {
  // A network that is described needs no checkpoint, which in a plan may not even be there.
  return config.model.is_null() ? RunStart(config).shape() : build_model_shape(config.model);
}

std::shared_ptr<Model> build_initial_model(const RunConfig& config) {
  return RunStart(config).model();
}

void check_initial_weights(const RunConfig& config) {
  if (config.init.empty()) return;
  const std::filesystem::path folder = resolve_checkpoint(config.init);
  verify_checkpoint(folder);
  const Document source = stored_document(folder / "config.json");
  build_initial_shape(config)->initialise_from(*build_model_shape(source.root().at("model")),
                                               gives_new_head(config), config.init);
}

}  // namespace moesaic
