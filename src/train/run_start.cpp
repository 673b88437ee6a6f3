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

std::shared_ptr<Model> build_initial_shape(const RunConfig& config) {
  if (!config.model.is_null()) return build_model_shape(config.model);
  const std::filesystem::path file = resolve_checkpoint(config.init) / "config.json";
  return build_model_shape(Document::from_file(file).root().at("model"));
}

std::shared_ptr<Model> build_initial_model(const RunConfig& config) {
  if (config.model.is_null()) return load_model(config.init);
  check_training_memory(config, *build_model_shape(config.model));
  const auto model = build_model(config.model, static_cast<uint64_t>(config.seed));
  if (!config.init.empty()) {
    model->initialise_from(*load_model(config.init), gives_new_head(config), config.init);
  }
  return model;
}

void check_init(const RunConfig& config) {
  if (config.init.empty()) return;
  const std::string place = place_of(config.source, {"init"});
  if (!path_exists(config.init)) {
    fail_usage("{}: init '{}' is not there{}; make it first, or give init=RUN_OR_CHECKPOINT", place,
               config.init, nearest_sibling(config.init));
  }
  at_place(place, [&] { return resolve_checkpoint(config.init); });
}

void check_initial_weights(const RunConfig& config) {
  if (config.init.empty()) return;
  const std::filesystem::path folder = resolve_checkpoint(config.init);
  verify_checkpoint(folder);
  const Document source = Document::from_file(folder / "config.json");
  build_initial_shape(config)->initialise_from(*build_model_shape(source.root().at("model")),
                                               gives_new_head(config), config.init);
}

}  // namespace moesaic
