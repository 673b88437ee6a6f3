// SPDX-License-Identifier: Apache-2.0
// Projections of single neurons on the data's known directions, of the experts that fine-tuning
// made most and least of: figures 3 and 7 of the pruning paper.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "built_in.h"

namespace moesaic {
namespace {

/// Calls `add` with weights, direction and their names for each pair that can be multiplied, of
/// experts of several neurons.
template <class Add>
void for_each_pair(const Model& model, const Dataset& data, Add add) {
  if (model.moe_blocks().size() != 1) return;
  for (const auto& [weights, w_EJd] : model.weight_directions()) {
    const auto present = static_cast<int64_t>(model.moe_blocks()[0].layer->kept().size());
    if (w_EJd.size(1) == 1 || w_EJd.size(0) != present) continue;
    for (const auto& [direction, v_Kd] : data.directions()) {
      if (w_EJd.size(2) == v_Kd.size(1)) add(weights, w_EJd, direction, v_Kd);
    }
  }
}

std::string table_name(const std::string& weights, const std::string& direction, int64_t group) {
  return fmt::format("single_{}_{}_{}", weights, direction, group + 1);
}

std::vector<Metric> neurons_metrics(const Model& model, const DataSplits& data) {
  std::vector<Metric> metrics;
  for_each_pair(
      model, *data.at("train"),
      [&](const std::string& weights, const at::Tensor&, const std::string& direction,
          const at::Tensor&) {
        const int64_t groups = model.moe_blocks()[0].ranked_groups();
        for (int64_t g = 0; g < groups; ++g) {
          metrics.push_back({table_name(weights, direction, g),
                             fmt::format("single {} and {}{}: <w, v>", weights, direction,
                                         groups > 1 ? fmt::format(", group {}", g + 1) : ""),
                             4, true});
        }
      });
  return metrics;
}

/// Returns the slots of a group's experts with the largest and the smallest router norm; one where
/// it has no other, none where it is empty.
std::vector<int64_t> extremes(const MoEBlock& block, int64_t group) {
  const std::vector<int64_t> kept = block.layer->kept();
  std::optional<int64_t> most, least;
  std::vector<double> norms;
  for (size_t slot = 0; slot < kept.size(); ++slot) {
    const at::Tensor& weight = block.layer->router->weight;
    norms.push_back(weight[kept[slot]].norm(2, at::kDouble).item<double>());
    if (kept[slot] * block.ranked_groups() / block.layer->options().experts != group) continue;
    const auto at = static_cast<int64_t>(slot);
    if (!most || norms[slot] > norms[static_cast<size_t>(*most)]) most = at;
    if (!least || norms[slot] < norms[static_cast<size_t>(*least)]) least = at;
  }
  if (!most) return {};
  return *most == *least ? std::vector<int64_t>{*most} : std::vector<int64_t>{*most, *least};
}

/// Rounds to what a figure shows, since the table of every run is kept.
double rounded(double value) {
  return std::round(1e5 * value) / 1e5;
}

MeasuredTable table_of(const MoEBlock& block, int64_t group, const at::Tensor& w_EJd,
                       const std::string& direction, const at::Tensor& v_Kd) {
  MeasuredTable table;
  for (int64_t k = 0; k < v_Kd.size(0); ++k) {
    table.columns.push_back(fmt::format("{} {}", direction, k + 1));
  }
  for (const int64_t slot : extremes(block, group)) {
    const at::Tensor products_JK =
        w_EJd[slot].to(at::kCPU, at::kDouble).mm(v_Kd.to(at::kCPU, at::kDouble).t());
    const auto at = products_JK.accessor<double, 2>();
    const int64_t id = block.layer->kept()[static_cast<size_t>(slot)];
    for (int64_t j = 0; j < at.size(0); ++j) {
      table.rows.push_back(fmt::format("expert {}, neuron {}", id + 1, j + 1));
      table.values.emplace_back();
      for (int64_t k = 0; k < at.size(1); ++k) table.values.back().push_back(rounded(at[j][k]));
    }
  }
  return table;
}

void measure_neurons(ProbeSubject& subject, Measurement& measurement) {
  for_each_pair(subject.model(), subject.data("train"),
                [&](const std::string& weights, const at::Tensor& w_EJd,
                    const std::string& direction, const at::Tensor& v_Kd) {
                  const MoEBlock block = subject.model().moe_blocks()[0];
                  for (int64_t g = 0; g < block.ranked_groups(); ++g) {
                    measurement.tables[table_name(weights, direction, g)] =
                        table_of(block, g, w_EJd, direction, v_Kd);
                  }
                });
}

}  // namespace

Probe neurons_probe() {
  return {.meaning =
              "products of single neurons with the data's known directions, of the experts "
              "with the largest and the smallest router",
          .metrics = neurons_metrics,
          .measure = measure_neurons};
}

}  // namespace moesaic
