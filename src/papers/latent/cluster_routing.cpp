// SPDX-License-Identifier: Apache-2.0
// How a router parts clusters whose means are known (figure 1b of the latent paper, lemma 4.10).
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "built_in.h"
#include "clusters.h"
#include "moesaic/data/dataset_inputs.h"

namespace moesaic {
namespace {

/// Returns the cosines of the router's rows and the means [K, C], 0 for rows of 0.
at::Tensor cosines(const Model& model, const at::Tensor& mean_Cd) {
  const at::Tensor router_Kd =
      model.weight_directions().at("router").select(1, 0).to(at::kCPU, at::kDouble);
  const auto unit = [](const at::Tensor& rows) {
    return rows / rows.norm(2, {1}, true).clamp_min(1e-30);
  };
  return unit(router_Kd).mm(unit(mean_Cd.to(at::kDouble)).t()).contiguous();
}

std::vector<Metric> routing_metrics(const Model& model, const DataSplits& data) {
  if (!model.weight_directions().contains("router") ||
      !data.at("train")->directions().contains("mean") || data.at("test")->info().groups.empty()) {
    return {};
  }
  return {{"routed", "experts whose router is positive on one cluster's mean alone", 3},
          {"covered", "clusters with such an expert", 3},
          {"misrouted", "test samples on the wrong side of such an expert's router, %", 2, false,
           /*optional=*/true},
          {"misrouted_limit", "where the nearest two clusters overlap, %", 2},
          {"router_cosine", "cosine of router and mean", 2, true}};
}

/// Returns the fraction of samples that an expert of one cluster takes though they are of another
/// one, or leaves though they are of its own, each kind in equal parts; nothing where no expert has
/// a cluster of which there are samples.
std::optional<double> misrouted(ProbeSubject& subject, const std::vector<int64_t>& own) {
  const Dataset& data = subject.data("test");
  const DatasetInputs inputs = data.generate(0, data.size());
  const at::Tensor router_Kd =
      subject.model().weight_directions().at("router").select(1, 0).to(at::kCPU, at::kFloat);
  const at::Tensor takes_NK = inputs.values_NCHW.flatten(1).mm(router_Kd.t()).ge(0);
  double sum = 0.0, count = 0.0;
  for (size_t k = 0; k < own.size(); ++k) {
    if (own[k] < 0) continue;
    const at::Tensor is_own = inputs.groups_N.eq(own[k]);
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

void measure_routing(ProbeSubject& subject, Measurement& measurement) {
  const at::Tensor mean_Cd = subject.data("train").directions().at("mean");
  const std::vector<int64_t> own = clusters_of_experts(subject.model(), mean_Cd);
  std::set<int64_t> covered(own.begin(), own.end());
  covered.erase(-1);
  const auto routed =
      static_cast<double>(own.size()) - static_cast<double>(std::count(own.begin(), own.end(), -1));
  measurement.numbers["routed"] = routed / static_cast<double>(own.size());
  measurement.numbers["covered"] =
      static_cast<double>(covered.size()) / static_cast<double>(mean_Cd.size(0));
  const std::optional<double> wrong = misrouted(subject, own);
  if (wrong) measurement.numbers["misrouted"] = 100.0 * *wrong;
  measurement.numbers["misrouted_limit"] = 100.0 * overlap(mean_Cd);
  MeasuredTable table;
  const at::Tensor cosine_KC = cosines(subject.model(), mean_Cd);
  for (int64_t c = 1; c <= mean_Cd.size(0); ++c) table.columns.push_back(fmt::format("v{}", c));
  const auto* numbers = cosine_KC.const_data_ptr<double>();
  for (int64_t k = 0; k < cosine_KC.size(0); ++k, numbers += mean_Cd.size(0)) {
    table.rows.push_back(fmt::format("expert {}", k + 1));
    table.values.emplace_back(numbers, numbers + mean_Cd.size(0));
  }
  measurement.tables["router_cosine"] = std::move(table);
}

}  // namespace

std::vector<int64_t> clusters_of_experts(const Model& model, const at::Tensor& mean_Cd) {
  const at::Tensor positive_KC = cosines(model, mean_Cd).gt(0);
  std::vector<int64_t> own;
  for (int64_t k = 0; k < positive_KC.size(0); ++k) {
    const at::Tensor row = positive_KC[k];
    const bool one = row.sum().item<int64_t>() == 1;
    own.push_back(one ? row.to(at::kInt).argmax().item<int64_t>() : -1);
  }
  return own;
}

Probe cluster_routing_probe() {
  return {.meaning = "how a router parts the data's clusters, by their means",
          .metrics = routing_metrics,
          .measure = measure_routing};
}

}  // namespace moesaic
