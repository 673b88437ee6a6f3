// SPDX-License-Identifier: Apache-2.0
// Data of the latent paper, generated: an endless training split and a test split.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "built_in.h"
#include "checks.h"
#include "moesaic/base/log.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/latent_clusters.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

struct LatentSettings {
  std::optional<LatentClustersConfig> mixture;
};
template <class Fields>
void describe(Fields& f, LatentSettings& c) {
  f("mixture", c.mixture, "what is generated in place of files");
}

ConfigProblem check_latent(const DatasetSpec& spec) {
  if (!spec.format.as<LatentSettings>().mixture) return {"format latent needs 'mixture'"};
  if (spec.validation.value_or(0.0) > 0.0) {
    return {"nothing can be held out of endless examples: leave 'validation' out", {"validation"}};
  }
  return first_problem(no_images_problem(spec), unknown_split(spec.images, "images"));
}

DatasetInputs inputs_of(const LatentExamples& examples) {
  return {.values_NCHW = examples.x_Nd.unsqueeze(1).unsqueeze(1),
          .groups_N = examples.cluster_N,
          .targets_NK = examples.y_N.unsqueeze(1)};
}

std::shared_ptr<const Dataset> open_latent(const DatasetSpec& spec, DatasetInfo info,
                                           const fs::path&) {
  const LatentClustersConfig& config = *spec.format.as<LatentSettings>().mixture;
  const std::string split = info.split;
  info.targets = {"y"};
  for (int64_t c = 1; c <= config.clusters; ++c)
    info.groups.push_back(fmt::format("cluster {}", c));
  const LatentTruth truth = latent_truth(config);
  Directions directions = {
      {"local", truth.local_Cd}, {"global", truth.global_1d}, {"mean", truth.mean_Cd}};
  if (split == "test") {
    return make_input_dataset(std::move(info),
                              inputs_of(latent_examples(config, truth, split, 0, config.test)),
                              std::move(directions));
  }
  const std::string departed = departures(config);
  if (!departed.empty()) {
    log_warning("dataset '{}': the theorems do not cover it (assumptions 3.2 and 3.3): {}",
                spec.name, departed);
  }
  return make_stream_dataset(
      std::move(info), config.train,
      [config, truth, split](int64_t first, int64_t count) {
        return inputs_of(latent_examples(config, truth, split, first, count));
      },
      std::move(directions));
}

}  // namespace

DatasetFormat latent_format() {
  return {.settings = Choice("latent", LatentSettings{}),
          .meaning = "generated inputs and targets with latent clusters (latent paper)",
          .images = false,
          .generated = true,
          .check = check_latent,
          .open = open_latent};
}

}  // namespace moesaic
