// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/probe.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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
      metrics.push_back(table_metric(name, label, 3));
      metrics.push_back(amount_metric("largest_" + name, "largest of " + label, 3));
    }
  }
  return metrics;
}

void measure_alignment(ProbedModel& subject, Measurement& measurement) {
  const auto directions = subject.data.at("train")->directions();
  for (const auto& [weights, w_EJd] : subject.model.weight_directions()) {
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

/// Returns a probe of `metric` of the last MoE layer's routing of the training data. It has no
/// metric for a network without such a layer nor, `by_kind`, for data without groups and classes.
Probe routing_probe(Metric metric, bool by_kind, std::string description,
                    std::function<void(ProbedModel&, const LayerRouting&, Measurement&)> measure) {
  return {.description = std::move(description),
          .metrics =
              [=](const Model& model, const DataSplits& data) {
                const DatasetInfo& info = data.at("train")->info();
                const bool kinds = !info.classes.empty() || !info.groups.empty();
                const bool measured = !model.moe_blocks().empty() && (kinds || !by_kind);
                return measured ? std::vector{metric} : std::vector<Metric>{};
              },
          .measure =
              [=](ProbedModel& subject, Measurement& measurement) {
                const std::vector<LayerRouting>& layers = subject.evaluation("train").routing;
                if (!layers.empty()) measure(subject, layers.back(), measurement);
              }};
}

const DispatchCounts& dispatch_of(const LayerRouting& layer) {
  return layer.by_group ? *layer.by_group : layer.by_class;
}

std::vector<std::string> expert_names(const LayerRouting& layer) {
  std::vector<std::string> names;
  for (const int64_t expert : layer.kept) names.push_back(fmt::format("expert {}", expert + 1));
  return names;
}

/// Adds the probes of the last MoE layer's routing.
void add_routing_probes(Registry<Probe>& to) {
  // In nats, eq. 6.1 of the clusters paper, and its counts.
  to.add("entropy",
         routing_probe(amount_metric("entropy", "dispatch entropy, nats", 3), true,
                       "dispatch entropy of the training data by its groups, else by its classes",
                       [](ProbedModel&, const LayerRouting& layer, Measurement& measurement) {
                         measurement.numbers["entropy"] = dispatch_of(layer).entropy;
                       }));
  to.add("dispatch",
         routing_probe(
             table_metric("dispatch", "training examples", 0), true,
             "number of training examples by expert and group, or class where there are no groups",
             [](ProbedModel& subject, const LayerRouting& layer, Measurement& measurement) {
               const DatasetInfo& info = subject.data.at("train")->info();
               MeasuredTable table{
                   layer.by_group ? info.groups : info.classes, expert_names(layer), {}};
               for (const auto& row : dispatch_of(layer).rows)
                 table.values.emplace_back(row.begin(), row.end());
               measurement.tables["dispatch"] = std::move(table);
             }));
  to.add("load",
         routing_probe(table_metric("load", "fraction of the rows", 3), false,
                       "fraction of the training data's rows that each expert computes",
                       [](ProbedModel&, const LayerRouting& layer, Measurement& measurement) {
                         measurement.tables["load"] = {{"load"}, expert_names(layer), {layer.load}};
                       }));
}

bool is_measured(const Dataset& data, const std::string& metric) {
  const std::vector<MetricInfo> metrics = metrics_of(data.info());
  return std::ranges::find(metrics, metric, &MetricInfo::name) != metrics.end();
}

/// Returns the accuracy in % that guesses among the classes exceed once in 700 times.
double guessed_accuracy(const Dataset& data) {
  const auto classes = static_cast<double>(data.info().classes.size());
  if (classes == 0.0) return Metric().chance_level;
  const double right = 1.0 / classes;
  return 100.0 *
         (right + 3.0 * std::sqrt(right * (1.0 - right) / static_cast<double>(data.size())));
}

/// Returns a probe of one number, of the data only for which `applies` holds, where it is given.
Probe number_probe(std::string description, Metric metric,
                   std::function<double(ProbedModel&)> measure,
                   bool (*applies)(const DataSplits&) = nullptr) {
  return {.description = std::move(description),
          .metrics =
              [=](const Model&, const DataSplits& data) {
                const bool measured = applies == nullptr || applies(data);
                return measured ? std::vector{metric} : std::vector<Metric>{};
              },
          .measure =
              [=](ProbedModel& subject, Measurement& measurement) {
                measurement.numbers[metric.name] = measure(subject);
              }};
}

/// Returns the probe of a metric of an evaluation (Evaluation::metrics) on a split, called
/// "<split>_<metric>".
Probe evaluation_probe(const std::string& split, const std::string& metric) {
  const std::string name = split + "_" + metric;
  return {.description = metric + " on the " + split + " split",
          .metrics = [=](const Model&, const DataSplits& data) -> std::vector<Metric> {
            if (!data.contains(split) || !is_measured(*data.at(split), metric)) return {};
            if (metric != "accuracy") return {amount_metric(name, split + " " + metric, 4)};
            Metric accuracy = amount_metric(name, split + " accuracy, %", 2, 100.0);
            accuracy.chance_level = guessed_accuracy(*data.at(split));
            return {accuracy};
          },
          .measure =
              [=](ProbedModel& subject, Measurement& measurement) {
                measurement.numbers[name] = subject.evaluation(split).metric(metric);
              }};
}

}  // namespace

MeasuredTable measured_table(std::vector<std::string> rows, std::vector<std::string> columns,
                             const at::Tensor& numbers_RC) {
  const at::Tensor numbers = numbers_RC.to(at::kCPU, at::kDouble).contiguous();
  MeasuredTable table{std::move(rows), std::move(columns), {}};
  const auto* at = numbers.const_data_ptr<double>();
  for (int64_t r = 0; r < numbers.size(0); ++r, at += numbers.size(1)) {
    table.values.emplace_back(at, at + numbers.size(1));
  }
  return table;
}

Registry<Probe>& probes() {
  static Registry<Probe> registry = [] {
    Registry<Probe> made(
        "probe",
        {// Products of the model's weights with the known directions of its data: for weights "a"
         // and directions "b" a table "a_b" of [experts, directions], in which an expert of one
         // vector w has <w, v> and one of several the max of |<w, v>|, and the number
         // "largest_a_b", the max magnitude in that table.
         {"alignment",
          {.description =
               "products of experts' and router's weights with the data's known directions",
           .metrics = alignment_metrics,
           .measure = measure_alignment}},
         {"flops", number_probe("number of FLOPs per image, by the test data's routing",
                                amount_metric("flops", "FLOPs an image", 0),
                                [](ProbedModel& subject) {
                                  return subject.model.flops_per_image(
                                      subject.evaluation("test").rows_per_token());
                                })},
         {"parameters", number_probe("number of parameters that the network has",
                                     amount_metric("parameters", "parameters", 0),
                                     [](ProbedModel& subject) {
                                       return static_cast<double>(subject.model.num_parameters());
                                     })},
         {"relative_error",
          number_probe(
              "mean squared error on the test split divided by the variance of its targets",
              amount_metric("error", "test error over the targets' variance", 4),
              [](ProbedModel& subject) {
                const Dataset& data = *subject.data.at("test");
                const at::Tensor y_NK = data.generate(0, data.size()).targets_NK.to(at::kDouble);
                const at::Tensor variance_K = y_NK.var(0, /*unbiased=*/false);
                return subject.evaluation("test").metric("mse") / variance_K.mean().item<double>();
              },
              [](const DataSplits& data) { return !data.at("test")->info().targets.empty(); })},
         {"steps",
          number_probe("number of steps that were made", amount_metric("steps", "steps", 0),
                       [](ProbedModel& subject) { return static_cast<double>(subject.step); })},
         {"success",  // As in figure 5 of the pMoE paper.
          number_probe(
              "indicator of a test accuracy of at least 90 %",
              amount_metric("success", "fraction of runs with 90 % or more", 2, 1.0),
              [](ProbedModel& subject) {
                return subject.evaluation("test").metric("accuracy") >= 90.0 ? 1.0 : 0.0;
              },
              [](const DataSplits& data) { return is_measured(*data.at("test"), "accuracy"); })}});
    add_routing_probes(made);
    for (const std::string split : {"train", "validation", "test"}) {
      for (const std::string metric : {"accuracy", "loss"}) {
        made.add(split + "_" + metric, evaluation_probe(split, metric));
      }
    }
    return made;
  }();
  return registry;
}

}  // namespace moesaic
