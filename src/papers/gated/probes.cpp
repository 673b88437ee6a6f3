// SPDX-License-Identifier: Apache-2.0
// How near a gated mixture's regressors and gates are to those that made the data (section 4 of
// "Learning in Gated Neural Networks"), and what a recurrent network's gates do.
#include <ATen/ATen.h>

#include <algorithm>

#include "moesaic/data/loader.h"
#include "parts.h"

namespace moesaic {
namespace {

constexpr const char *kRegressor = "regressor", *kGate = "gate";
constexpr double kRecovered = 0.05;

at::Tensor unit_rows(const at::Tensor& rows) {
  return rows / rows.norm(2, {1}, true).clamp_min(1e-30);
}

/// Matches every row to a column of its own whose value is at least `least`, by augmenting paths.
class Matching {
 public:
  Matching(const at::Tensor& values_kk, double least)
      : values_(values_kk.accessor<double, 2>()), least_(least) {}

  /// Returns the row of each column, or nothing where some rows get none.
  std::optional<std::vector<int64_t>> find() {
    row_of_.assign(static_cast<size_t>(values_.size(0)), -1);
    for (int64_t row = 0; row < values_.size(0); ++row) {
      std::set<int64_t> tried;
      if (!place(row, tried)) return std::nullopt;
    }
    return row_of_;
  }

 private:
  bool place(int64_t row, std::set<int64_t>& tried) {
    for (int64_t column = 0; column < values_.size(1); ++column) {
      if (values_[row][column] < least_ || !tried.insert(column).second) continue;
      int64_t& holder = row_of_[static_cast<size_t>(column)];
      if (holder >= 0 && !place(holder, tried)) continue;
      holder = row;
      return true;
    }
    return false;
  }

  at::TensorAccessor<double, 2> values_;
  double least_;
  std::vector<int64_t> row_of_;
};

/// Returns the permutation whose min value is the max, the row of each column, by the values in
/// falling order.
std::vector<int64_t> best_permutation(const at::Tensor& values_kk) {
  const at::Tensor flat = values_kk.flatten();
  std::vector<double> levels(flat.const_data_ptr<double>(),
                             flat.const_data_ptr<double>() + flat.numel());
  std::sort(levels.begin(), levels.end());
  // The lowest level always matches; search for the highest that does.
  size_t low = 0, high = levels.size();
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (Matching(values_kk, levels[middle]).find() ? low : high) = middle;
  }
  return *Matching(values_kk, levels[low]).find();
}

/// Adds 1 - the min over gates of the cosine with the true one, and the max of the distances. Gates
/// of both are completed by the last one, 0; a learned gate is referred to the one of the expert
/// that is the true last.
void add_gate_errors(const at::Tensor& w, const at::Tensor& true_w,
                     const std::vector<int64_t>& learned_of, RecoveryError& error) {
  const at::Tensor all = at::constant_pad_nd(w, {0, 0, 0, 1});
  const at::Tensor last = all[learned_of.back()];
  double least = 1.0;
  for (int64_t j = 0; j < w.size(0); ++j) {
    const at::Tensor own = all[learned_of[static_cast<size_t>(j)]] - last;
    const double norms = (own.norm() * true_w[j].norm()).item<double>();
    least = std::min(least, norms > 0.0 ? own.dot(true_w[j]).item<double>() / norms : 0.0);
    const auto distance = (own - true_w[j]).norm().item<double>();
    error.gates_distance = std::max(error.gates_distance, distance);
  }
  error.gates = 1.0 - least;
}

/// Returns the errors of a network, and whether it has learned any gates.
std::pair<RecoveryError, bool> errors_of(ProbedModel& subject) {
  const auto learned = subject.model.weight_directions();
  const auto truth = subject.data.at("train")->directions();
  const auto of = [](const auto& directions, const char* name) {
    const auto found = directions.find(name);
    return found == directions.end() ? at::Tensor()
                                     : found->second.to(at::kCPU, at::kDouble).contiguous();
  };
  at::Tensor gate = of(learned, kGate), true_gate = of(truth, kGate);
  if (gate.defined()) {  // Only one of both may have biases.
    gate = gate.select(1, 0);
    const int64_t num_columns = std::max(gate.size(1), true_gate.size(1));
    gate = at::constant_pad_nd(gate, {0, num_columns - gate.size(1)});
    true_gate = at::constant_pad_nd(true_gate, {0, num_columns - true_gate.size(1)});
  }
  return {
      recovery_error(of(learned, kRegressor).select(1, 0), of(truth, kRegressor), gate, true_gate),
      gate.defined() && gate.abs().max().item<double>() > 0.0};
}

std::string table_name(const std::string& gate) {
  return gate + "_gate";
}

struct Sums {
  at::Tensor gates_CT, count_C;
};

}  // namespace

RecoveryError recovery_error(const at::Tensor& a_kd, const at::Tensor& true_a_kd,
                             const at::Tensor& w_kd, const at::Tensor& true_w_kd) {
  const at::Tensor cosines = unit_rows(a_kd).mm(unit_rows(true_a_kd).t()).abs().contiguous();
  const std::vector<int64_t> learned_of = best_permutation(cosines);
  RecoveryError error;
  for (int64_t i = 0; const int64_t learned : learned_of) {
    const auto cosine = cosines[learned][i].item<double>();
    error.regressors = std::max(error.regressors, 1.0 - cosine);
    const at::Tensor off = a_kd[learned] - true_a_kd[i++];
    error.regressors_distance = std::max(error.regressors_distance, off.norm().item<double>());
  }
  if (w_kd.defined() && w_kd.size(0) > 0) add_gate_errors(w_kd, true_w_kd, learned_of, error);
  return error;
}

// The probe of recovery_error(): "error_A", "error_W", and "recovered", 1 where the first is at
// most 0.05 and, unless all gates are 0, the second too.
std::vector<Metric> recovery_metrics(const Model& model, const DataSplits& data) {
  const auto learned = model.weight_directions();
  const auto truth = data.at("train")->directions();
  if (!learned.contains(kRegressor) || !truth.contains(kRegressor) ||
      learned.at(kRegressor).size(0) != truth.at(kRegressor).size(0)) {
    return {};
  }
  return {{"error_A", "regressor error", 4, false, false, 0.0, 1.0},
          {"error_W", "gating error", 4, false, false, 0.0, 2.0},
          {"recovered", "recovered, fraction of runs", 2, false, false, 0.0, 1.0}};
}

void measure_recovery(ProbedModel& subject, Measurement& measurement) {
  const auto [error, gates_count] = errors_of(subject);
  const bool good = error.regressors <= kRecovered && (!gates_count || error.gates <= kRecovered);
  measurement.numbers["error_A"] = error.regressors;
  measurement.numbers["error_W"] = error.gates;
  measurement.numbers["recovered"] = good ? 1.0 : 0.0;
}

// The probe of the distances of recovery_error(), theorem 3's norm: "distance_A", "distance_W".
std::vector<Metric> distance_metrics(const Model& model, const DataSplits& data) {
  if (recovery_metrics(model, data).empty()) return {};
  return {amount_metric("distance_A", "largest distance of a regressor", 4),
          amount_metric("distance_W", "largest distance of a gate", 4)};
}

void measure_distance(ProbedModel& subject, Measurement& measurement) {
  const RecoveryError error = errors_of(subject).first;
  measurement.numbers["distance_A"] = error.regressors_distance;
  measurement.numbers["distance_W"] = error.gates_distance;
}

// The probe of a recurrent network's gates (Model::gates_over_time()): for each a table
// "<name>_gate" of their means over the test data, by class and step.
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

void measure_gates(ProbedModel& subject, Measurement& measurement) {
  const Dataset& data = *subject.data.at("test");
  const auto classes = static_cast<int64_t>(data.info().classes.size());
  std::map<std::string, Sums> sums;
  Loader loader(subject.data.at("test"), {.batch_size = 500});
  while (!loader.is_done()) {
    const Batch batch = loader.next().to(subject.model.device());
    for (const auto& [gate, values_BT] : subject.model.gates_over_time(batch.inputs)) {
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
    measurement.tables[table_name(gate)] =
        measured_table(data.info().classes, numbered("", sum.gates_CT.size(1)),
                       sum.gates_CT / sum.count_C.clamp_min(1.0).unsqueeze(1));
  }
}

}  // namespace moesaic
