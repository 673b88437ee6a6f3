// SPDX-License-Identifier: Apache-2.0
// Probes of the pruning paper: projections of single neurons on the data's known directions, of the
// experts that fine-tuning made most and least of (figures 3 and 7), and the proficiency of a
// router in selecting the patterns that tell the class (section 4.2), beside the norm of its
// weights.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "moesaic/base/text.h"
#include "moesaic/papers/pruning_theory.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/phase.h"
#include "own_pattern.h"

namespace moesaic {
namespace {

/// Calls `add` with weights, direction and their names for each pair that can be multiplied.
void for_each_pair(const Model& model, const Dataset& data, auto add) {
  if (model.moe_blocks().size() != 1) return;
  for (const auto& [weights, w_EJd] : model.weight_directions()) {
    const auto present = static_cast<int64_t>(model.moe_blocks()[0].layer->kept().size());
    if (w_EJd.size(0) != present) continue;
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
  for_each_pair(model, *data.at("train"),
                [&](const std::string& weights, const at::Tensor&, const std::string& direction,
                    const at::Tensor&) {
                  const int64_t groups = model.moe_blocks()[0].num_ranked_groups();
                  for (int64_t g = 0; g < groups; ++g) {
                    metrics.push_back(table_metric(
                        table_name(weights, direction, g),
                        fmt::format("single {} and {}{}: <w, v>", weights, direction,
                                    groups > 1 ? fmt::format(", group {}", g + 1) : ""),
                        4));
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
    if (kept[slot] * block.num_ranked_groups() / block.layer->options().num_experts != group)
      continue;
    const auto at = static_cast<int64_t>(slot);
    if (!most || norms[slot] > norms[static_cast<size_t>(*most)]) most = at;
    if (!least || norms[slot] < norms[static_cast<size_t>(*least)]) least = at;
  }
  if (!most) return {};
  return *most == *least ? std::vector<int64_t>{*most} : std::vector<int64_t>{*most, *least};
}

MeasuredTable table_of(const MoEBlock& block, int64_t group, const at::Tensor& w_EJd,
                       const std::string& direction, const at::Tensor& v_Kd) {
  MeasuredTable table{{}, numbered(direction + " ", v_Kd.size(0)), {}};
  for (const int64_t slot : extremes(block, group)) {
    const at::Tensor products_JK =
        w_EJd[slot].to(at::kCPU, at::kDouble).mm(v_Kd.to(at::kCPU, at::kDouble).t());
    const auto at = products_JK.accessor<double, 2>();
    const int64_t id = block.layer->kept()[static_cast<size_t>(slot)];
    for (int64_t j = 0; j < at.size(0); ++j) {
      table.rows.push_back(fmt::format("expert {}", id + 1));
      if (at.size(0) > 1) table.rows.back() += fmt::format(", neuron {}", j + 1);
      table.values.emplace_back();
      // As a figure shows it: every run's table is kept.
      for (int64_t k = 0; k < at.size(1); ++k) {
        table.values.back().push_back(std::round(1e5 * at[j][k]) / 1e5);
      }
    }
  }
  return table;
}

void measure_neurons(ProbedModel& subject, Measurement& measurement) {
  for_each_pair(subject.model(), subject.data("train"),
                [&](const std::string& weights, const at::Tensor& w_EJd,
                    const std::string& direction, const at::Tensor& v_Kd) {
                  const MoEBlock block = subject.model().moe_blocks()[0];
                  for (int64_t g = 0; g < block.num_ranked_groups(); ++g) {
                    measurement.tables[table_name(weights, direction, g)] =
                        table_of(block, g, w_EJd, direction, v_Kd);
                  }
                });
}

constexpr const char *kProficiency = "proficiency", *kSeparation = "separation",
                     *kFromIdle = "separation_from_idle";
constexpr double kProficient = 0.5;

std::vector<Metric> proficiency_metrics(const Model& model, const DataSplits&) {
  if (!find_layer_of<nn::PatternExperts>(model)) return {};
  return {
      amount_metric(kSeparation, "norm of proficient routers over others", 1),
      amount_metric(kFromIdle, "norm of proficient routers over those of neither class", 1),
      table_metric(kProficiency, "proficiency for class 1 (p1) and 2 (p2), and router norm", 4)};
}

void measure_proficiency(ProbedModel& subject, Measurement& measurement) {
  const nn::MoELayer layer = subject.model().moe_blocks()[0].layer;
  const at::Tensor p_2K =
      own_pattern_gates(subject.model(), subject.shared_data("test")).proficiency();
  const std::vector<int64_t> kept = layer->kept();
  const at::Tensor sign = layer->experts->as<nn::PatternExperts>()->sign.cpu();
  MeasuredTable table{{}, {"p1", "p2", "router norm"}, {}};
  double least = 0.0, largest = 0.0, largest_idle = 0.0;
  bool any = false;
  for (size_t k = 0; k < kept.size(); ++k) {
    const auto slot = static_cast<int64_t>(k);
    const double norm = layer->router->weight[kept[k]].norm(2, at::kDouble).item<double>();
    const double p1 = p_2K[0][slot].item<double>(), p2 = p_2K[1][slot].item<double>();
    table.rows.push_back("expert " + std::to_string(kept[k] + 1));
    table.values.push_back({p1, p2, norm});
    const bool proficient = (sign[slot].item<float>() > 0 ? p1 : p2) >= kProficient;
    if (proficient) least = any ? std::min(least, norm) : norm;
    if (!proficient) largest = std::max(largest, norm);
    // An expert may also learn the other class's pattern, to select it and give nothing.
    if (std::max(p1, p2) < kProficient) largest_idle = std::max(largest_idle, norm);
    any = any || proficient;
  }
  measurement.tables[kProficiency] = std::move(table);
  // Without experts of either kind nothing is separated.
  const auto over = [&](double norm) { return any && norm > 0.0 ? least / norm : 0.0; };
  measurement.numbers[kSeparation] = over(largest);
  measurement.numbers[kFromIdle] = over(largest_idle);
}

}  // namespace

[[maybe_unused]] const bool kPatternProbes =
    // The probe of single neurons' and routers' products with the data's known directions, in
    // networks of one MoE layer: for weights "a" and directions "b" a table "single_a_b_<g>" for
    // each group of experts that pruning ranks apart, with a row for every vector of the expert
    // with the largest router and of that with the smallest.
    probes().add("neurons",
                 {.description =
                      "products of single neurons and routers with the data's known directions, of "
                      "the experts whose routers have the largest and the smallest norm",
                  .metrics = neurons_metrics,
                  .measure = measure_neurons}) &&
    probes().add("proficiency",
                 {.description = "proficiency of routers: fraction of class-deciding "
                                 "patterns that they select, and their norms",
                  .metrics = proficiency_metrics,
                  .measure = measure_proficiency});

}  // namespace moesaic
