// SPDX-License-Identifier: Apache-2.0
#include "experiment_run.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/config/document.h"
#include "moesaic/config/problem.h"
#include "moesaic/train/run_plan.h"
#include "moesaic/train/run_start.h"
#include "moesaic/train/trainer.h"

namespace moesaic {
namespace {

/// Returns the probes that apply to such a network and appends their metrics to `metrics`.
std::vector<const Probe*> applicable(const std::vector<std::string>& names,
                                     const std::string& where, const Model& shape,
                                     const DataSplits& data, std::vector<Metric>& metrics) {
  std::vector<const Probe*> list;
  for (const std::string& name : names) {
    const Probe& probe = probes().at(name, where);
    const std::vector<Metric> gives = probe.metrics(shape, data);
    if (gives.empty()) continue;
    list.push_back(&probe);
    metrics.insert(metrics.end(), gives.begin(), gives.end());
  }
  return list;
}

EvaluateOptions evaluate_options(const RunConfig& config) {
  EvaluateOptions options;
  options.batch_size = config.evaluate_batch_size;
  options.loader_threads = 0;
  options.loss = objective_name(config.phases.back());
  options.precision = config.precision;
  return options;
}

/// Plans what is measured at the end of a phase. Appends the metrics by their names in the results.
PhaseProbes probes_after(const std::map<std::string, std::string>& names, const std::string& where,
                         const Model& shape, const DataSplits& data, std::vector<Metric>& metrics) {
  PhaseProbes after;
  std::vector<std::string> known;
  std::map<std::string, std::string> left = names;
  for (const std::string& name : probes().names()) {
    const Probe& probe = probes().at(name);
    bool wanted = false;
    for (const Metric& metric : probe.metrics(shape, data)) {
      known.push_back(metric.name);
      const auto found = left.find(metric.name);
      if (found == left.end()) continue;
      const bool renamed = found->second != metric.name;
      metrics.push_back({found->second,
                         renamed ? found->second + ": " + metric.label : metric.label,
                         metric.digits, metric.is_table});
      after.names.insert(left.extract(found));
      wanted = true;
    }
    if (wanted) after.probes.push_back(&probe);
  }
  if (!left.empty()) {
    fail_usage("{}: no probe gives such a network the metric '{}'; {}", where, left.begin()->first,
               did_you_mean(left.begin()->first, known));
  }
  return after;
}

Measurement measured(const ExperimentRun& run, const std::vector<const Probe*>& probes,
                     Model& model, int64_t step) {
  const c10::InferenceMode inference;
  ProbeSubject subject(model, step, run.data, evaluate_options(run.config));
  Measurement measurement{.step = step};
  for (const Probe* probe : probes) probe->measure(subject, measurement);
  return measurement;
}

/// Adds the best snapshot's value of each of these metrics to the run's end.
void add_best(const std::vector<std::string>& metrics, RunRecord& record) {
  for (const std::string& metric : metrics) {
    const bool lower = metric.ends_with("loss");
    double best =
        lower ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    for (const Measurement& at : record.snapshots) {
      const double value = at.numbers.at(metric);
      best = lower ? std::min(best, value) : std::max(best, value);
    }
    record.final.numbers["best_" + metric] = best;
  }
}

/// Returns the run with all that the row sets.
Value settings_of(const RunsConfig& experiment, const PlannedRow& row) {
  Document document(experiment.train);
  for (const Value& set : row.sets) {
    for (const Value::Member& setting : set.members("set")) {
      document.set(setting.key, setting.value);
    }
  }
  return document.root();
}

}  // namespace

int64_t ExperimentRun::images(int64_t updates) const {
  int64_t sum = 0;
  for (const auto& [steps, batch] : phases) {
    const int64_t made = std::min(steps, updates);
    sum += made * batch;
    updates -= made;
  }
  return sum;
}

std::set<std::string> lost_arguments(const RunsConfig& experiment, const PlannedRow& row) {
  std::set<std::string> lost = arguments_in(experiment.train);
  for (const Value& set : row.sets) lost.merge(arguments_in(set));
  if (lost.empty()) return lost;
  for (const std::string& argument : arguments_in(settings_of(experiment, row))) {
    lost.erase(argument);
  }
  return lost;
}

RunConfig config_of(const RunsConfig& experiment, const PlannedRow& row) {
  RunConfig config = parse<RunConfig>(settings_of(experiment, row));
  config.loader_threads = 0;  // Runs already use all cores in parallel.
  for (PhaseConfig& phase : config.phases) {
    if (experiment.max_steps == 0) continue;
    phase.epochs.reset();
    phase.steps = std::min(phase.steps.value_or(experiment.max_steps), experiment.max_steps);
  }
  return config;
}

ExperimentRun plan_run(RunConfig config, const RunsConfig& experiment, Datasets& datasets) {
  const std::shared_ptr<Model> shape = build_initial_shape(config);
  const std::vector<PhasePlan> plans = plan_phases(config, *shape, datasets);
  const PhaseConfig& last = config.phases.back();
  ExperimentRun run;
  std::vector<std::string> splits = datasets.evaluation_splits(last.data);
  splits.push_back("train");
  for (const std::string& split : splits) {
    run.data[split] = datasets.get(last.data, split, last.preprocess);
  }
  std::vector<std::string> names = experiment.probes;
  if (experiment.snapshots) {
    const std::vector<std::string>& while_training = experiment.snapshots->probes;
    run.every = experiment.snapshots->every;
    if (experiment.snapshots->by_epoch) run.every *= plans.back().steps_per_epoch;
    run.snapshot_probes =
        applicable(while_training, place_of(experiment.source, {"snapshots.probes"}), *shape,
                   run.data, run.snapshot_metrics);
    for (const std::string& name : while_training) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  run.probes =
      applicable(names, place_of(experiment.source, {"probes"}), *shape, run.data, run.metrics);
  for (const auto& [phase, wanted] : experiment.after) {
    const std::string where = place_of(experiment.source, {"after." + phase, "after"});
    std::vector<std::string> phases;
    for (const PhaseConfig& known : config.phases) phases.push_back(known.name);
    if (std::find(phases.begin(), phases.end(), phase) == phases.end()) continue;
    run.after[phase] = probes_after(wanted, where, *shape, run.data, run.metrics);
  }
  const std::vector<std::string> best =
      experiment.snapshots ? experiment.snapshots->best : std::vector<std::string>{};
  for (const std::string& name : best) {
    const Metric* metric = find_metric(run.snapshot_metrics, name);
    if (metric == nullptr || metric->is_table) continue;
    run.best.push_back(name);
    run.metrics.push_back({"best_" + name, "best " + metric->label, metric->digits});
  }
  int64_t updates = 0;
  for (const PhasePlan& plan : plans) {
    if (plan.steps > 0) run.earlier_phases = std::exchange(updates, updates + plan.steps);
    run.phases.emplace_back(plan.steps, plan.batch);
  }
  run.config = std::move(config);
  return run;
}

std::optional<RunRecord> make_run(const ExperimentRun& run, int64_t index, Datasets& datasets,
                                  const Going& going) {
  RunRecord record;
  const auto take_snapshot = [&](Model& model, int64_t step) {
    // The last step of a run makes no update, so two snapshots may have the same step.
    const bool fresh = record.snapshots.empty() || record.snapshots.back().step != step;
    if (run.snapshot_probes.empty() || !fresh) return;
    record.snapshots.push_back(measured(run, run.snapshot_probes, model, step));
  };
  TrainerOptions options;
  options.progress = false;
  options.device = run.device;
  options.open = [&](std::string_view name, std::string_view split) {
    return datasets.get(std::string(name), std::string(split));
  };
  int64_t before = -run.every;  // Step 0 is a multiple, too.
  options.watch = [&](Model& model, int64_t step) {
    if (!going(run.images(step))) return false;
    if (passes_multiple(before, step, run.every)) take_snapshot(model, step);
    before = step;
    return true;
  };
  Measurement after;
  options.phase_ended = [&](Model& model, const std::string& phase, int64_t step) {
    const auto found = run.after.find(phase);
    if (found == run.after.end()) return;
    Measurement now = measured(run, found->second.probes, model, step);
    for (const auto& [metric, name] : found->second.names) {
      if (now.numbers.contains(metric)) after.numbers[name] = now.numbers.at(metric);
      if (now.tables.contains(metric)) after.tables[name] = std::move(now.tables.at(metric));
    }
  };
  RunConfig config = run.config;
  config.seed += index;
  Trainer trainer(std::move(config), std::move(options));
  const TrainResult result = trainer.run();
  if (!result.complete) return std::nullopt;
  const std::shared_ptr<Model> model = trainer.model();
  take_snapshot(*model, result.steps);
  record.final = measured(run, run.probes, *model, result.steps);
  record.final.numbers.merge(after.numbers);
  record.final.tables.merge(after.tables);
  add_best(run.best, record);
  return record;
}

}  // namespace moesaic
