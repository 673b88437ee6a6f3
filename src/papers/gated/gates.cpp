// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "built_in.h"
#include "moesaic/data/loader.h"

namespace moesaic {
namespace {

std::string table_name(const std::string& gate) {
  return gate + "_gate";
}

std::vector<Metric> gates_metrics(const Model& model, const DataSplits& data) {
  if (data.at("test")->info().classes.empty()) return {};
  std::vector<int64_t> shape = model.input_shape();
  shape.insert(shape.begin(), 1);
  const at::Tensor blank = at::zeros(shape, at::TensorOptions(model.device()));
  std::vector<Metric> metrics;
  for (const auto& [gate, values] : model.gates_over_time(blank)) {
    metrics.push_back({table_name(gate), "mean " + gate + " gate by class and step", 3, true});
  }
  return metrics;
}

struct Sums {
  at::Tensor gates_CT, count_C;
};

void measure_gates(ProbeSubject& subject, Measurement& measurement) {
  const Dataset& data = subject.data("test");
  const auto classes = static_cast<int64_t>(data.info().classes.size());
  std::map<std::string, Sums> sums;
  LoaderOptions options;
  options.batch_size = 500;
  Loader loader(subject.shared_data("test"), options);
  while (!loader.done()) {
    const Batch batch = loader.next().to(subject.model().device());
    for (const auto& [gate, values_BT] : subject.model().gates_over_time(batch.images)) {
      Sums& sum = sums[gate];
      const at::Tensor values = values_BT.to(at::kDouble);
      if (!sum.gates_CT.defined()) {
        sum = {at::zeros({classes, values.size(1)}, values.options()),
               at::zeros({classes}, values.options())};
      }
      sum.gates_CT.index_add_(0, batch.labels, values);
      sum.count_C.index_add_(0, batch.labels, at::ones_like(batch.labels, values.options()));
    }
  }
  for (const auto& [gate, sum] : sums) {
    const at::Tensor means =
        (sum.gates_CT / sum.count_C.clamp_min(1.0).unsqueeze(1)).cpu().contiguous();
    MeasuredTable table{data.info().classes, {}, {}};
    for (int64_t t = 1; t <= means.size(1); ++t) table.columns.push_back(std::to_string(t));
    const auto* numbers = means.const_data_ptr<double>();
    for (int64_t c = 0; c < classes; ++c, numbers += means.size(1)) {
      table.values.emplace_back(numbers, numbers + means.size(1));
    }
    measurement.tables[table_name(gate)] = std::move(table);
  }
}

}  // namespace

Probe gates_probe() {
  return {.meaning = "a recurrent network's gates at each step, by class",
          .metrics = gates_metrics,
          .measure = measure_gates};
}

}  // namespace moesaic
