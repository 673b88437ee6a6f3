// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "built_in.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// Returns the products [E, K] of w_EJd and v_Kd.
at::Tensor products(const at::Tensor& w_EJd, const at::Tensor& v_Kd) {
  const at::Tensor v = v_Kd.to(w_EJd.options());
  return w_EJd.size(1) == 1 ? w_EJd.select(1, 0).mm(v.t())
                            : at::einsum("ejd,kd->ekj", {w_EJd, v}).abs().amax(2);
}

double largest(const MeasuredTable& table) {
  double largest = 0.0;
  for (const auto& row : table.values) {
    for (const double value : row) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

std::vector<Metric> alignment_metrics(const Model& model, const DataSplits& data) {
  std::vector<Metric> metrics;
  for (const auto& [weights, w_EJd] : model.weight_directions()) {
    const char* what = w_EJd.size(1) == 1 ? "<w, v>" : "max |<w, v>|";
    for (const auto& [direction, v_Kd] : data.at("train")->directions()) {
      if (w_EJd.size(2) != v_Kd.size(1)) continue;
      const std::string name = weights + "_" + direction;
      const std::string label = fmt::format("{} and {}: {}", weights, direction, what);
      metrics.push_back({name, label, 3, true});
      metrics.push_back({"largest_" + name, "largest of " + label, 3});
    }
  }
  return metrics;
}

void measure_alignment(ProbeSubject& subject, Measurement& measurement) {
  const auto directions = subject.data("train").directions();
  for (const auto& [weights, w_EJd] : subject.model().weight_directions()) {
    for (const auto& [direction, v_Kd] : directions) {
      if (w_EJd.size(2) != v_Kd.size(1)) continue;
      const std::string name = weights + "_" + direction;
      MeasuredTable table =
          measured_table(numbered("expert ", w_EJd.size(0)),
                         numbered(direction + " ", v_Kd.size(0)), products(w_EJd, v_Kd));
      measurement.numbers["largest_" + name] = largest(table);
      measurement.tables[name] = std::move(table);
    }
  }
}

}  // namespace

Probe alignment_probe() {
  return {.meaning = "products of experts' and router's weights with the data's known directions",
          .metrics = alignment_metrics,
          .measure = measure_alignment};
}

}  // namespace moesaic
