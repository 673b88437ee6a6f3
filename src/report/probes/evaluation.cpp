// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>

#include "built_in.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/train/task.h"

namespace moesaic {
namespace {

bool is_measured(const Dataset& data, const std::string& metric) {
  const std::vector<MetricInfo> metrics = task_of(data.info()).metrics(data.info());
  return std::any_of(metrics.begin(), metrics.end(),
                     [&](const MetricInfo& known) { return known.name == metric; });
}

}  // namespace

Probe evaluation_probe(const std::string& split, const std::string& metric) {
  const std::string name = split + "_" + metric;
  const bool percent = metric.ends_with("accuracy");
  return {.meaning = metric + " on the " + split + " split",
          .metrics =
              [=](const Model&, const DataSplits& data) {
                if (!data.contains(split) || !is_measured(*data.at(split), metric)) {
                  return std::vector<Metric>{};
                }
                return std::vector<Metric>{
                    {name, split + " " + metric + (percent ? ", %" : ""), percent ? 2 : 4}};
              },
          .measure =
              [=](ProbeSubject& subject, Measurement& measurement) {
                measurement.numbers[name] = subject.on(split).metric(metric);
              }};
}

Probe relative_error_probe() {
  return {.meaning = "mean squared error on the test split over the variance of its targets",
          .metrics =
              [](const Model&, const DataSplits& data) {
                if (data.at("test")->info().targets.empty()) return std::vector<Metric>{};
                return std::vector<Metric>{{"error", "test error over the targets' variance", 4}};
              },
          .measure =
              [](ProbeSubject& subject, Measurement& measurement) {
                const Dataset& data = subject.data("test");
                const at::Tensor y_NK = data.generate(0, data.size()).targets_NK.to(at::kDouble);
                const at::Tensor variance_K = y_NK.var(0, /*unbiased=*/false);
                measurement.numbers["error"] =
                    subject.on("test").metric("mse") / variance_K.mean().item<double>();
              }};
}

Probe success_probe() {
  constexpr double kLeast = 90.0;
  return {
      .meaning = "whether the test accuracy is at least 90 %",
      .metrics =
          [](const Model&, const DataSplits& data) {
            return is_measured(*data.at("test"), "accuracy")
                       ? std::vector<Metric>{{"success", "fraction of runs with 90 % or more", 2}}
                       : std::vector<Metric>{};
          },
      .measure =
          [](ProbeSubject& subject, Measurement& measurement) {
            measurement.numbers["success"] =
                subject.on("test").metric("accuracy") >= kLeast ? 1.0 : 0.0;
          }};
}

}  // namespace moesaic
