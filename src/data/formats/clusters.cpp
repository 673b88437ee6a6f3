// SPDX-License-Identifier: Apache-2.0
// Data with cluster structure, generated when opened.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "built_in.h"
#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/memory.h"
#include "moesaic/data/cluster_mixture.h"
#include "moesaic/data/dataset_inputs.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

struct ClustersSettings {
  std::optional<ClusterMixtureConfig> clusters;
};
template <class Fields>
void describe(Fields& f, ClustersSettings& c) {
  f("clusters", c.clusters, "what is generated in place of files");
}

ConfigProblem check_clusters(const DatasetSpec& spec) {
  const auto& clusters = spec.format.as<ClustersSettings>().clusters;
  if (!clusters) return {"format clusters needs 'clusters'"};
  if (clusters->endless && spec.validation.value_or(0.0) > 0.0) {
    return {"nothing can be held out of endless clusters: leave 'validation' out", {"validation"}};
  }
  return first_problem(no_images_problem(spec), unknown_split(spec.images, "images"));
}

void check_memory_of(const DatasetSpec& spec, const std::string& split) {
  const ClusterMixtureConfig& config = *spec.format.as<ClustersSettings>().clusters;
  const int64_t count = split == "train" ? config.train : config.test;
  const double bytes = sizeof(float) * static_cast<double>(count) *
                       static_cast<double>(config.patches * config.width);
  check_memory(bytes,
               fmt::format("the {} split of {} examples of {} x {} numbers", split, count,
                           config.patches, config.width),
               fmt::format("dataset '{}'", spec.name));
}

DatasetInputs inputs_of(const ClusterExamples& examples) {
  return {examples.x_NPd.unsqueeze(1), examples.labels_N, examples.cluster_N};
}

std::shared_ptr<const Dataset> open_clusters(const DatasetSpec& spec, DatasetInfo info,
                                             const fs::path&) {
  const ClusterMixtureConfig& config = *spec.format.as<ClustersSettings>().clusters;
  const std::string split = info.split;
  const bool endless = config.endless && split == "train";
  if (!endless) check_memory_of(spec, split);
  info.classes = {"-1", "+1"};
  for (int64_t k = 1; k <= config.clusters; ++k)
    info.groups.push_back(fmt::format("cluster {}", k));
  const ClusterSignals signals = cluster_signals(config);
  Directions directions = {{"signal", signals.v_Kd}, {"centre", signals.c_Kd}};
  if (!endless) {
    return make_input_dataset(std::move(info), inputs_of(cluster_examples(config, split)),
                              std::move(directions));
  }
  return make_stream_dataset(
      std::move(info), config.train,
      [config, signals, split](int64_t first, int64_t count) {
        return inputs_of(cluster_examples(config, signals, split, first, count));
      },
      std::move(directions));
}

}  // namespace

DatasetFormat clusters_format() {
  return {.settings = Choice("clusters", ClustersSettings{}),
          .meaning = "generated data with cluster structure (clusters paper, definition 3.1)",
          .images = false,
          .generated = true,
          .check = check_clusters,
          .open = open_clusters,
          .class_count = [](const DatasetSpec&) { return int64_t{2}; }};
}

}  // namespace moesaic
