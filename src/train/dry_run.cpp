// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/dry_run.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/data/dataset.h"
#include "moesaic/train/memory.h"
#include "moesaic/train/run_plan.h"
#include "moesaic/train/run_start.h"

namespace moesaic {

std::string dry_run(const RunConfig& given, const std::optional<ScalingOptions>& scaling) {
  RunConfig config = given;
  Datasets datasets{DatasetOpener(PlannedDatasets(), dataset_splits)};
  const std::shared_ptr<Model> model = build_initial_shape(config);
  const std::vector<PhasePlan> phases =
      plan_phases(config, *model, datasets, MissingFiles::planned);
  config.model = Value::from_json(model->config(), "model");
  const std::string text =
      describe_run(config, *model, phases) +
      (scaling ? describe_scaling(*model, config, phases, *scaling)  // Memory of a process too.
               : describe_memory(*model, config, phases));
  if (config.init.empty() || path_exists(config.init)) {
    check_initial_weights(config);
    return text;
  }
  log_warning("init: '{}' is not there; shapes are checked from the recipe alone", config.init);
  return text;
}

}  // namespace moesaic
