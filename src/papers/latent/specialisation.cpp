// SPDX-License-Identifier: Apache-2.0
// What the neurons of experts look at, where the data have tasks of clusters ("local") and one that
// all share ("global"): figures 1a and 2 of the latent paper.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "built_in.h"
#include "clusters.h"

namespace moesaic {
namespace {

constexpr double kAligned = 0.5;
constexpr int64_t kBins = 10;

std::vector<std::string> task_names(int64_t clusters) {
  std::vector<std::string> names;
  for (int64_t c = 1; c <= clusters; ++c) names.push_back(fmt::format("w{}", c));
  names.emplace_back("wg");
  return names;
}

std::vector<Metric> specialisation_metrics(const Model& model, const DataSplits& data) {
  const auto weights = model.weight_directions();
  const auto known = data.at("train")->directions();
  if (!weights.contains("neuron") || !known.contains("local") || !known.contains("global")) {
    return {};
  }
  const int64_t clusters = known.at("local").size(0);
  const std::vector<std::string> tasks = task_names(clusters);
  std::vector<Metric> metrics;
  for (const std::string& task : tasks) {
    metrics.push_back({"max_" + task, "largest |alignment| with " + task + ", mean of experts", 3});
  }
  for (const std::string& task : tasks) {
    metrics.push_back({"share_" + task, "neurons above 0.5 on " + task, 4});
  }
  for (int64_t c = 1; c <= clusters; ++c) {
    metrics.push_back({fmt::format("experts_{}", c), fmt::format("experts led by w{}", c), 1});
  }
  metrics.push_back({"largest", "largest |alignment| of an expert", 2, true});
  metrics.push_back({"leading", "task of the largest |alignment|", 0, true});
  for (const std::string& task : tasks) {
    metrics.push_back({"distribution_" + task, "neurons by |alignment| with " + task, 0, true});
  }
  if (!weights.contains("router") || !known.contains("mean")) return metrics;
  const auto add_own = [&](std::string name, std::string label, int digits, bool is_table) {
    metrics.push_back({std::move(name), std::move(label), digits, is_table, /*optional=*/true});
  };
  add_own("max_own", "largest |alignment| with the own cluster's task", 3, false);
  add_own("max_other", "largest |alignment| with another cluster's task", 3, false);
  for (int64_t c = 1; c <= clusters; ++c) {
    add_own(fmt::format("neurons_{}", c), fmt::format("|alignment| of an expert of cluster {}", c),
            2, true);
  }
  return metrics;
}

MeasuredTable named_table(std::vector<std::string> rows, std::vector<std::string> columns,
                          const at::Tensor& values) {
  const at::Tensor numbers = values.to(at::kDouble).contiguous();
  MeasuredTable table{std::move(rows), std::move(columns), {}};
  const auto* at = numbers.const_data_ptr<double>();
  for (int64_t r = 0; r < numbers.size(0); ++r, at += numbers.size(1)) {
    table.values.emplace_back(at, at + numbers.size(1));
  }
  return table;
}

std::vector<std::string> bin_names() {
  std::vector<std::string> names;
  for (int64_t i = 0; i < kBins; ++i) {
    names.push_back(fmt::format("{:.1f}", static_cast<double>(i) / static_cast<double>(kBins)));
  }
  return names;
}

/// Returns how many neurons of each expert have a magnitude in each of the bins: [K, bins].
at::Tensor counts_by_bin(const at::Tensor& magnitude_KJ) {
  const at::Tensor bin = (magnitude_KJ * kBins).to(at::kLong).clamp(0, kBins - 1);
  const at::Tensor counts = at::zeros({bin.size(0), kBins}, at::kDouble);
  counts.scatter_add_(1, bin, at::ones(bin.sizes(), at::kDouble));
  return counts;
}

/// Measures experts that have a cluster; where none has there is nothing to say.
void measure_own(ProbeSubject& subject, const at::Tensor& magnitude_KJT, Measurement& measurement) {
  const int64_t clusters = magnitude_KJT.size(2) - 1;
  const at::Tensor largest_KT = magnitude_KJT.amax(1);
  const std::vector<int64_t> own =
      clusters_of_experts(subject.model(), subject.data("train").directions().at("mean"));
  double sum_own = 0.0, sum_other = 0.0, count = 0.0;
  std::vector<int64_t> expert_of(static_cast<size_t>(clusters), -1);
  for (size_t k = 0; k < own.size(); ++k) {
    if (own[k] < 0) continue;
    const at::Tensor largest = largest_KT[static_cast<int64_t>(k)].narrow(0, 0, clusters).clone();
    sum_own += largest[own[k]].item<double>();
    largest[own[k]] = 0.0;
    sum_other += largest.max().item<double>();
    count += 1.0;
    int64_t& first = expert_of[static_cast<size_t>(own[k])];
    if (first < 0) first = static_cast<int64_t>(k);
  }
  if (count > 0) measurement.numbers["max_own"] = sum_own / count;
  if (count > 0) measurement.numbers["max_other"] = sum_other / count;
  std::vector<std::string> neurons;
  for (int64_t j = 1; j <= magnitude_KJT.size(1); ++j) neurons.push_back(std::to_string(j));
  for (int64_t c = 0; c < clusters; ++c) {
    const int64_t k = expert_of[static_cast<size_t>(c)];
    if (k < 0) continue;
    measurement.tables[fmt::format("neurons_{}", c + 1)] =
        named_table(task_names(clusters), neurons, magnitude_KJT[k].t());
  }
}

void measure_specialisation(ProbeSubject& subject, Measurement& measurement) {
  const auto weights = subject.model().weight_directions();
  const auto known = subject.data("train").directions();
  const at::Tensor tasks_Td = at::cat({known.at("local"), known.at("global")});
  const int64_t clusters = known.at("local").size(0);
  const at::Tensor w_KJd = weights.at("neuron").to(at::kCPU, at::kFloat);
  const at::Tensor magnitude_KJT = w_KJd.matmul(tasks_Td.t()).abs().to(at::kDouble);
  const at::Tensor largest_KT = magnitude_KJT.amax(1);
  const std::vector<std::string> names = task_names(clusters);
  std::vector<std::string> experts;
  for (int64_t k = 1; k <= w_KJd.size(0); ++k) experts.push_back(fmt::format("expert {}", k));
  for (int64_t t = 0; t <= clusters; ++t) {
    const std::string& name = names[static_cast<size_t>(t)];
    const at::Tensor of_task = magnitude_KJT.select(2, t);
    measurement.numbers["max_" + name] = largest_KT.select(1, t).mean().item<double>();
    measurement.numbers["share_" + name] =
        of_task.gt(kAligned).to(at::kDouble).mean().item<double>();
    measurement.tables["distribution_" + name] =
        named_table(experts, bin_names(), counts_by_bin(of_task));
  }
  const at::Tensor leading_local = largest_KT.narrow(1, 0, clusters).argmax(1);
  for (int64_t c = 0; c < clusters; ++c) {
    measurement.numbers[fmt::format("experts_{}", c + 1)] =
        leading_local.eq(c).sum().item<double>();
  }
  measurement.tables["largest"] = named_table(experts, names, largest_KT);
  measurement.tables["leading"] = named_table(
      experts, names, largest_KT.eq(largest_KT.amax(1, /*keepdim=*/true)).to(at::kDouble));
  if (weights.contains("router") && known.contains("mean")) {
    measure_own(subject, magnitude_KJT, measurement);
  }
}

}  // namespace

Probe specialisation_probe() {
  return {.meaning = "alignments of experts' neurons with the tasks of the data's clusters",
          .metrics = specialisation_metrics,
          .measure = measure_specialisation};
}

}  // namespace moesaic
