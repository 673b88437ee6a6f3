// SPDX-License-Identifier: Apache-2.0
// Data of a gated mixture, generated: an endless training split and a test split.
#include <optional>
#include <utility>

#include "built_in.h"
#include "checks.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/gated_mixture.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

struct GatedSettings {
  std::optional<GatedMixtureConfig> mixture;
};
template <class Fields>
void describe(Fields& f, GatedSettings& c) {
  f("mixture", c.mixture, "what is generated in place of files");
}

ConfigProblem check_gated(const DatasetSpec& spec) {
  if (!spec.format.as<GatedSettings>().mixture) return {"format gated needs 'mixture'"};
  if (spec.validation.value_or(0.0) > 0.0) {
    return {"nothing can be held out of endless examples: leave 'validation' out", {"validation"}};
  }
  return first_problem(no_images_problem(spec), unknown_split(spec.images, "images"));
}

DatasetInputs inputs_of(const GatedExamples& examples) {
  return {.values_NCHW = examples.x_Nd.unsqueeze(1).unsqueeze(1),
          .targets_NK = examples.y_N.unsqueeze(1)};
}

std::shared_ptr<const Dataset> open_gated(const DatasetSpec& spec, DatasetInfo info,
                                          const fs::path&) {
  const GatedMixtureConfig& config = *spec.format.as<GatedSettings>().mixture;
  const std::string split = info.split;
  info.targets = {"y"};
  const GatedTruth truth = gated_truth(config);
  Directions directions = {{"regressor", truth.a_kd}};
  if (truth.w_kd.size(0) > 0) directions["gate"] = truth.w_kd;
  if (split == "test") {
    return make_input_dataset(std::move(info),
                              inputs_of(gated_examples(config, truth, split, 0, config.test)),
                              std::move(directions));
  }
  return make_stream_dataset(
      std::move(info), config.train,
      [config, truth, split](int64_t first, int64_t count) {
        return inputs_of(gated_examples(config, truth, split, first, count));
      },
      std::move(directions));
}

}  // namespace

DatasetFormat gated_format() {
  return {.settings = Choice("gated", GatedSettings{}),
          .meaning = "generated inputs and outputs of a gated mixture (gated paper, section 4)",
          .images = false,
          .generated = true,
          .check = check_gated,
          .open = open_gated};
}

}  // namespace moesaic
