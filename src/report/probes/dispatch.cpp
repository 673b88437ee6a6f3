// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "built_in.h"

namespace moesaic {
namespace {

/// Returns a probe of `metric` of the last MoE layer's routing of the training data. It has no
/// metric for a network without such a layer nor, `by_kind`, for data without groups and classes.
Probe routing_probe(Metric metric, bool by_kind, std::string meaning,
                    std::function<void(ProbeSubject&, Measurement&)> measure) {
  return {.meaning = std::move(meaning),
          .metrics =
              [=](const Model& model, const DataSplits& data) {
                const DatasetInfo& info = data.at("train")->info();
                const bool kinds = !info.classes.empty() || !info.groups.empty();
                const bool measured = !model.moe_blocks().empty() && (kinds || !by_kind);
                return measured ? std::vector{metric} : std::vector<Metric>{};
              },
          .measure =
              [=](ProbeSubject& subject, Measurement& measurement) {
                if (!subject.on("train").routing.empty()) measure(subject, measurement);
              }};
}

const LayerRouting& last_layer(ProbeSubject& subject) {
  return subject.on("train").routing.back();
}

const Dispatch& dispatch_of(const LayerRouting& layer) {
  return layer.by_group ? *layer.by_group : layer.by_class;
}

std::vector<std::string> expert_names(const LayerRouting& layer) {
  std::vector<std::string> names;
  for (const int64_t expert : layer.kept) names.push_back(fmt::format("expert {}", expert + 1));
  return names;
}

}  // namespace

Probe entropy_probe() {
  return routing_probe({"entropy", "dispatch entropy, nats", 3}, true,
                       "dispatch entropy of the training data by its groups, else by its classes",
                       [](ProbeSubject& subject, Measurement& measurement) {
                         measurement.numbers["entropy"] = dispatch_of(last_layer(subject)).entropy;
                       });
}

Probe dispatch_probe() {
  return routing_probe(
      {"dispatch", "training examples", 0, true}, true,
      "training examples by group, else by class, and expert",
      [](ProbeSubject& subject, Measurement& measurement) {
        const LayerRouting& layer = last_layer(subject);
        const DatasetInfo& info = subject.data("train").info();
        MeasuredTable table{layer.by_group ? info.groups : info.classes, expert_names(layer), {}};
        for (const auto& row : dispatch_of(layer).rows)
          table.values.emplace_back(row.begin(), row.end());
        measurement.tables["dispatch"] = std::move(table);
      });
}

Probe load_probe() {
  return routing_probe({"load", "fraction of the rows", 3, true}, false,
                       "fraction of the training data's rows that each expert computes",
                       [](ProbeSubject& subject, Measurement& measurement) {
                         const LayerRouting& layer = last_layer(subject);
                         measurement.tables["load"] = {{"load"}, expert_names(layer), {layer.load}};
                       });
}

}  // namespace moesaic
