// SPDX-License-Identifier: Apache-2.0
// The experiment "samples": draws images of a dataset as a network sees them in training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/data/transforms.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/figure.h"

namespace moesaic {

struct SamplesConfig {
  std::string name, kind, description, data, split = "train";
  PreprocessConfig preprocess;
  AugmentConfig augment;
  std::vector<int64_t> images;
  int64_t columns = 8, seed = 1;
  Value quick;
};
template <class Fields>
void describe(Fields& f, SamplesConfig& c) {
  f("name", c.name, "name of the experiment", required, not_empty);
  f("kind", c.kind, "what is done", required, one_of({"samples"}));
  f("description", c.description, "one line for lists and the report", required, not_empty);
  f("data", c.data, "the dataset", required, not_empty);
  f("split", c.split, "split of the dataset", not_empty);
  f("preprocess", c.preprocess, "as a phase has it");
  f("augment", c.augment, "as a phase has it, but for mixup");
  f("images", c.images, "which: indices in the split", required, not_empty, at_least(0));
  f("columns", c.columns, "images in a row of the figure", between(1, 100));
  f("seed", c.seed, "seed of the augmentation");
  f("quick", c.quick, "settings of --scale quick, by dotted name");
}
ConfigProblem config_problem(const SamplesConfig& config);

/// Returns the figure of the images, each under its class and, where there are groups, its group.
/// Throws Error (usage) for an index that the split does not have.
Figure samples_figure(const SamplesConfig& config, const ReproduceOptions& options);

}  // namespace moesaic
