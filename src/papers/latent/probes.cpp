// SPDX-License-Identifier: Apache-2.0
// What the neurons of experts look at, where the data have tasks of clusters ("local") and one that
// all share ("global"): figures 1a and 2 of the latent paper. How a router parts clusters whose
// means are known (figure 1b, lemma 4.10).
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "parts.h"

namespace moesaic {
namespace {

/// Returns the cosines of the router's rows and the means [K, C], 0 for rows of 0.
at::Tensor cosines(const Model& model, const at::Tensor& mean_Cd) {
  const at::Tensor router_Kd =
      model.weight_directions().at("router").select(1, 0).to(at::kCPU, at::kDouble);
  const auto unit = [](const at::Tensor& rows) {
    return rows / rows.norm(2, {1}, true).clamp_min(1e-30);
  };
  return unit(router_Kd).mm(unit(mean_Cd.to(at::kDouble)).t());
}

/// Returns for each expert the only cluster whose mean, of mean_Cd, has a positive product with its
/// row of the router; -1 where there is none, or several.
std::vector<int64_t> clusters_of_experts(const Model& model, const at::Tensor& mean_Cd) {
  const at::Tensor positive_KC = cosines(model, mean_Cd).gt(0);
  const at::Tensor own_K =
      at::where(positive_KC.sum(1).eq(1), positive_KC.to(at::kInt).argmax(1), -1).contiguous();
  const auto* const own = own_K.const_data_ptr<int64_t>();
  return {own, own + own_K.numel()};
}

/// Returns the fraction of samples that an expert of one cluster takes though they are of another
/// one, or leaves though they are of its own, each kind in equal parts; nothing where no expert has
/// a cluster of which there are samples.
std::optional<double> misrouted(const at::Tensor& takes_NK, const at::Tensor& cluster_N,
                                const std::vector<int64_t>& own) {
  double sum = 0.0, count = 0.0;
  for (size_t k = 0; k < own.size(); ++k) {
    if (own[k] < 0) continue;
    const at::Tensor is_own = cluster_N.eq(own[k]);
    if (!is_own.any().item<bool>() || is_own.all().item<bool>()) continue;
    const at::Tensor wrong = takes_NK.select(1, static_cast<int64_t>(k)).ne(is_own).to(at::kDouble);
    const double missed = wrong.masked_select(is_own).mean().item<double>();
    sum += (missed + wrong.masked_select(is_own.logical_not()).mean().item<double>()) / 2.0;
    count += 1.0;
  }
  if (count == 0.0) return std::nullopt;
  return sum / count;
}

/// Returns Phi(-r / 2) for the distance r of the nearest two means, the error of the best rule.
double overlap(const at::Tensor& mean_Cd) {
  double nearest = std::numeric_limits<double>::infinity();
  for (int64_t a = 0; a < mean_Cd.size(0); ++a) {
    for (int64_t b = 0; b < a; ++b) {
      nearest = std::min(nearest, (mean_Cd[a] - mean_Cd[b]).norm().item<double>());
    }
  }
  return 0.5 * std::erfc(nearest / (2.0 * std::sqrt(2.0)));
}

constexpr double kAligned = 0.5;
constexpr int64_t kBins = 10;

std::vector<std::string> task_names(int64_t clusters) {
  std::vector<std::string> names = numbered("w", clusters);
  names.emplace_back("wg");
  return names;
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

/// Returns how many neurons of each expert have a larger <w, w_t> than the largest that J random
/// neurons have with C tasks, about sqrt(2 log(J C) / d) (definition 4.7, figure 1a): [K, T].
at::Tensor count_above_random(const at::Tensor& alignment_KJT, int64_t d) {
  const auto drawn = static_cast<double>(alignment_KJT.size(1) * (alignment_KJT.size(2) - 1));
  const double largest = std::sqrt(2.0 * std::log(drawn) / static_cast<double>(d));
  return alignment_KJT.gt(largest).sum(1).to(at::kDouble);
}

/// Measures experts that have a cluster; where none has there is nothing to say.
void measure_own(ProbedModel& subject, const at::Tensor& magnitude_KJT, Measurement& measurement) {
  const int64_t clusters = magnitude_KJT.size(2) - 1;
  const at::Tensor largest_KT = magnitude_KJT.amax(1);
  const std::vector<int64_t> own =
      clusters_of_experts(subject.model, subject.data.at("train")->directions().at("mean"));
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
  for (int64_t c = 0; c < clusters; ++c) {
    const int64_t k = expert_of[static_cast<size_t>(c)];
    if (k < 0) continue;
    measurement.tables[fmt::format("neurons_{}", c + 1)] = measured_table(
        task_names(clusters), numbered("", magnitude_KJT.size(1)), magnitude_KJT[k].t());
  }
}

}  // namespace

// The probe of the experts that a router gives to one cluster alone, by the data's directions
// "mean": "routed", "covered", and "misrouted" beside what the overlap of the nearest clusters
// costs the best rule; "wrong_pairs" of a sample and an expert, whose cluster has the largest
// cosine: taken though of another cluster, or left though of its own.
std::vector<Metric> cluster_routing_metrics(const Model& model, const DataSplits& data) {
  if (!model.weight_directions().contains("router") ||
      !data.at("train")->directions().contains("mean") || data.at("test")->info().groups.empty()) {
    return {};
  }
  return {amount_metric("routed", "experts whose router is positive on one cluster's mean alone", 3,
                        1.0),
          amount_metric("covered", "clusters with such an expert", 3, 1.0),
          {.name = "misrouted",
           .label = "test samples on the wrong side of such an expert's router, %",
           .is_optional = true,
           .min = 0.0,
           .max = 100.0},
          amount_metric("wrong_pairs", "pairs of sample and expert that are wrong, %", 2, 100.0),
          amount_metric("misrouted_limit", "where the nearest two clusters overlap, %", 2, 50.0),
          table_metric("router_cosine", "cosine of router and mean"),
          table_metric("router_leading", "mean of the largest cosine", 0)};
}

void measure_cluster_routing(ProbedModel& subject, Measurement& measurement) {
  const at::Tensor mean_Cd = subject.data.at("train")->directions().at("mean");
  const std::vector<int64_t> own = clusters_of_experts(subject.model, mean_Cd);
  std::set<int64_t> covered(own.begin(), own.end());
  covered.erase(-1);
  const auto routed =
      static_cast<double>(own.size()) - static_cast<double>(std::count(own.begin(), own.end(), -1));
  measurement.numbers["routed"] = routed / static_cast<double>(own.size());
  measurement.numbers["covered"] =
      static_cast<double>(covered.size()) / static_cast<double>(mean_Cd.size(0));
  const Dataset& data = *subject.data.at("test");
  const DatasetInputs inputs = data.generate(0, data.size());
  const at::Tensor router_Kd =
      subject.model.weight_directions().at("router").select(1, 0).to(at::kCPU, at::kFloat);
  // Which expert, of those that exist, takes which test sample.
  const at::Tensor takes_NK = inputs.values_NCHW.flatten(1).mm(router_Kd.t()).ge(0);
  const std::optional<double> wrong = misrouted(takes_NK, inputs.groups_N, own);
  if (wrong) measurement.numbers["misrouted"] = 100.0 * *wrong;
  measurement.numbers["misrouted_limit"] = 100.0 * overlap(mean_Cd);
  const at::Tensor cosine_KC = cosines(subject.model, mean_Cd);
  // Every expert has a cluster here: that of the largest cosine, whatever the signs.
  const at::Tensor is_own_NK = inputs.groups_N.unsqueeze(1).eq(cosine_KC.argmax(1));
  measurement.numbers["wrong_pairs"] =
      100.0 * takes_NK.ne(is_own_NK).to(at::kDouble).mean().item<double>();
  const auto add_table = [&](const char* name, const at::Tensor& values_KC) {
    measurement.tables[name] = measured_table(numbered("expert ", values_KC.size(0)),
                                              numbered("v", values_KC.size(1)), values_KC);
  };
  add_table("router_cosine", cosine_KC);
  add_table("router_leading", cosine_KC.eq(cosine_KC.amax(1, true)).to(at::kDouble));
}

// The probe of the largest |alignment| of each expert's neurons with the data's directions "local"
// and "global", "max_<task>" in the mean over experts, of those that a router gives to one cluster
// "max_own" and "max_other"; "share_<task>" of the neurons above 0.5; "experts_<c>" whose largest
// alignment with a local task is with c's; and tables of all that, among them figure 1a:
// "above_random".
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
    metrics.push_back(amount_metric(
        "max_" + task, "largest |alignment| with " + task + ", mean of experts", 3, 1.0));
  }
  for (const std::string& task : tasks) {
    metrics.push_back(amount_metric("share_" + task, "neurons above 0.5 on " + task, 4, 1.0));
  }
  for (int64_t c = 1; c <= clusters; ++c) {
    metrics.push_back(amount_metric(fmt::format("experts_{}", c),
                                    fmt::format("experts led by w{}", c), 1,
                                    static_cast<double>(weights.at("neuron").size(0))));
  }
  metrics.push_back(table_metric("largest", "largest |alignment| of an expert"));
  metrics.push_back(table_metric("leading", "task of the largest |alignment|", 0));
  metrics.push_back(table_metric("above_random", "neurons aligned more than a random largest", 0));
  for (const std::string& task : tasks) {
    metrics.push_back(
        table_metric("distribution_" + task, "neurons by |alignment| with " + task, 0));
  }
  if (!weights.contains("router") || !known.contains("mean")) return metrics;
  const auto add_own = [&](std::string name, std::string label, int digits, bool is_table) {
    metrics.push_back({.name = std::move(name),
                       .label = std::move(label),
                       .digits = digits,
                       .is_table = is_table,
                       .is_optional = true,
                       .min = 0.0,
                       .max = 1.0});
  };
  add_own("max_own", "largest |alignment| with the own cluster's task", 3, false);
  add_own("max_other", "largest |alignment| with another cluster's task", 3, false);
  for (int64_t c = 1; c <= clusters; ++c) {
    add_own(fmt::format("neurons_{}", c), fmt::format("|alignment| of an expert of cluster {}", c),
            2, true);
  }
  return metrics;
}

void measure_specialisation(ProbedModel& subject, Measurement& measurement) {
  const auto weights = subject.model.weight_directions();
  const auto known = subject.data.at("train")->directions();
  const at::Tensor tasks_Td = at::cat({known.at("local"), known.at("global")});
  const int64_t clusters = known.at("local").size(0);
  const at::Tensor w_KJd = weights.at("neuron").to(at::kCPU, at::kFloat);
  const at::Tensor alignment_KJT = w_KJd.matmul(tasks_Td.t());
  const at::Tensor magnitude_KJT = alignment_KJT.abs().to(at::kDouble);
  const at::Tensor largest_KT = magnitude_KJT.amax(1);
  const std::vector<std::string> names = task_names(clusters);
  const std::vector<std::string> experts = numbered("expert ", w_KJd.size(0));
  for (int64_t t = 0; t <= clusters; ++t) {
    const std::string& name = names[static_cast<size_t>(t)];
    const at::Tensor of_task = magnitude_KJT.select(2, t);
    measurement.numbers["max_" + name] = largest_KT.select(1, t).mean().item<double>();
    measurement.numbers["share_" + name] =
        of_task.gt(kAligned).to(at::kDouble).mean().item<double>();
    measurement.tables["distribution_" + name] =
        measured_table(experts, bin_names(), counts_by_bin(of_task));
  }
  const at::Tensor leading_local = largest_KT.narrow(1, 0, clusters).argmax(1);
  for (int64_t c = 0; c < clusters; ++c) {
    measurement.numbers[fmt::format("experts_{}", c + 1)] =
        leading_local.eq(c).sum().item<double>();
  }
  measurement.tables["largest"] = measured_table(experts, names, largest_KT);
  measurement.tables["above_random"] =
      measured_table(names, experts, count_above_random(alignment_KJT, w_KJd.size(2)).t());
  measurement.tables["leading"] = measured_table(
      experts, names, largest_KT.eq(largest_KT.amax(1, /*keepdim=*/true)).to(at::kDouble));
  if (weights.contains("router") && known.contains("mean")) {
    measure_own(subject, magnitude_KJT, measurement);
  }
}

}  // namespace moesaic
