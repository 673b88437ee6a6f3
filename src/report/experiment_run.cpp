// SPDX-License-Identifier: Apache-2.0
#include "experiment_run.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/config/document.h"
#include "moesaic/config/problem.h"
#include "moesaic/data/class_names.h"
#include "moesaic/train/run_plan.h"
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

/// Returns the data of a phase with the labels of its network's outputs.
Grounds grounds_of(const PhasePlan& plan, const Model& shape, Datasets& datasets) {
  const PhaseConfig& phase = plan.config;
  Grounds grounds{{}, objective_name(phase)};
  std::vector<std::string> splits = datasets.evaluation_splits(phase.data);
  splits.insert(splits.end(), {"test", "train"});  // Probes take these two for granted.
  for (const std::string& split : splits) {
    grounds.data[split] = with_classes_of(
        datasets.get(phase.data, split, phase.preprocess, shape.input_shape()), plan.classes);
  }
  return grounds;
}

/// Plans what is measured at the end of a phase. Appends the metrics by their names in the results.
PhaseProbes probes_after(const std::map<std::string, std::string>& names, const std::string& where,
                         const Model& shape, Grounds grounds, std::vector<Metric>& metrics) {
  PhaseProbes after{.grounds = std::move(grounds)};
  std::vector<std::string> known;
  std::map<std::string, std::string> left = names;
  for (const std::string& name : probes().names()) {
    const Probe& probe = probes().at(name);
    bool wanted = false;
    for (Metric& metric : probe.metrics(shape, after.grounds.data)) {
      known.push_back(metric.name);
      const auto found = left.find(metric.name);
      if (found == left.end()) continue;
      if (found->second != metric.name) metric.label = found->second + ": " + metric.label;
      metric.name = found->second;
      metrics.push_back(std::move(metric));
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

/// Returns the metrics of the row of this name, a new one where there is none.
std::vector<Metric>& metrics_of(std::vector<FilledRow>& rows, const std::string& name) {
  for (FilledRow& row : rows) {
    if (row.name == name) return row.metrics;
  }
  return rows.emplace_back(FilledRow{name, {}}).metrics;
}

/// Plans what is measured at the ends of phases, for the run's own row or for earlier ones.
void plan_after(const PlannedRow& row, const RunsConfig& experiment, const Model& shape,
                const std::vector<PhasePlan>& plans, Datasets& datasets, ExperimentRun& run) {
  std::map<std::string, std::string> earlier = row.earlier;
  for (const PhasePlan& plan : plans) {
    const PhaseConfig& phase = plan.config;
    const auto wanted = experiment.after.find(phase.name);
    if (wanted == experiment.after.end()) continue;
    const std::string where = place_of(experiment.source, {"after." + phase.name, "after"});
    const auto elsewhere = earlier.extract(phase.name);
    std::vector<Metric>& metrics =
        elsewhere.empty() ? run.metrics : metrics_of(run.earlier, elsewhere.mapped());
    PhaseProbes probes =
        probes_after(wanted->second, where, shape, grounds_of(plan, shape, datasets), metrics);
    if (!elsewhere.empty()) probes.row = elsewhere.mapped();
    run.after[phase.name] = std::move(probes);
  }
  if (earlier.empty()) return;
  fail_usage("{}: row '{}': 'after' measures nothing at the end of a phase '{}' of it",
             place_of(experiment.source, {"rows", "grid"}), row.name, earlier.begin()->first);
}

constexpr const char *kSecondsTo = "seconds_to_", *kUpdateSeconds = "update_seconds";

bool is_lower_better(const std::string& metric) {
  return metric.ends_with("loss");
}

/// Adds the best snapshot's value of each of these metrics to the run's end.
void add_best(const std::vector<std::string>& metrics, RunRecord& record) {
  for (const std::string& metric : metrics) {
    const bool lower = is_lower_better(metric);
    double best =
        lower ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
    for (const Measurement& at : record.snapshots) {
      const auto value = at.numbers.find(metric);
      if (value == at.numbers.end()) continue;
      best = lower ? std::min(best, value->second) : std::max(best, value->second);
    }
    if (std::isfinite(best)) record.final.numbers["best_" + metric] = best;
  }
}

/// Time of training, which measuring interrupts.
class TrainingTime {
 public:
  void pause() {
    if (running_) seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
    running_ = false;
  }
  void resume() {
    begin_ = Clock::now();
    running_ = true;
  }
  double seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_;
  bool running_ = false;
  double seconds_ = 0.0;
};

/// Adds when each of these metrics was first about as good as in the last snapshot; `seconds` is
/// the time of training until each snapshot.
void add_converged(const ExperimentRun& run, const std::vector<double>& seconds,
                   RunRecord& record) {
  constexpr double kWithin = 0.5;
  if (run.converged.empty()) return;
  if (const int64_t updates = record.snapshots.back().step; updates > 0) {
    record.final.numbers[kUpdateSeconds] = seconds.back() / static_cast<double>(updates);
  }
  for (const std::string& metric : run.converged) {
    const double sign = is_lower_better(metric) ? -1.0 : 1.0;
    const auto last = record.snapshots.back().numbers.find(metric);
    if (last == record.snapshots.back().numbers.end()) continue;
    for (size_t i = 0; i < record.snapshots.size(); ++i) {
      const Measurement& at = record.snapshots[i];
      const auto value = at.numbers.find(metric);
      if (at.step <= run.earlier_phases) continue;  // It has not begun.
      if (value == at.numbers.end() || sign * (value->second - last->second) < -kWithin) continue;
      record.final.numbers["converged_" + metric] =
          static_cast<double>(at.step - run.earlier_phases) /
          static_cast<double>(run.converged_unit);
      record.final.numbers[kSecondsTo + metric] = seconds[i];
      break;
    }
  }
}

/// Adds to the run's metrics those that its snapshots become.
void plan_snapshot_metrics(const SnapshotConfig& snapshots, ExperimentRun& run) {
  const auto numbers_of = [&](const std::vector<std::string>& names) {
    std::vector<std::string> found;
    for (const std::string& name : names) {
      const Metric* metric = find_metric(run.snapshot_metrics, name);
      if (metric != nullptr && !metric->is_table) found.push_back(name);
    }
    return found;
  };
  const auto metric_of = [&](const std::string& name) {
    return *find_metric(run.snapshot_metrics, name);
  };
  const auto add = [&](const std::string& name, const std::string& prefix, const std::string& label,
                       int digits) {
    run.metrics.push_back({prefix + name, label, digits, false, metric_of(name).optional});
  };
  run.best = numbers_of(snapshots.best);
  for (const std::string& name : run.best) {
    add(name, "best_", "best " + metric_of(name).label, metric_of(name).digits);
  }
  run.converged = numbers_of(snapshots.converged);
  for (const std::string& name : run.converged) {
    // Without its unit, as in "test accuracy, %".
    const std::string label = metric_of(name).label, what = label.substr(0, label.find(','));
    add(name, "converged_",
        fmt::format("{} until {} converges", snapshots.by_epoch ? "epochs" : "updates", what), 1);
    add(name, kSecondsTo, fmt::format("seconds until {} converges", what), 2);
  }
  if (!run.converged.empty()) {
    run.metrics.push_back({kUpdateSeconds, "seconds an update", 4, false, true});
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

Measurement measured(const RunConfig& config, const Grounds& grounds,
                     const std::vector<const Probe*>& probes, Model& model, int64_t step,
                     const std::function<bool(int64_t, int64_t)>& proceed) {
  const c10::InferenceMode inference;
  EvaluateOptions options;
  options.batch_size = config.evaluate_batch_size;
  options.loader_threads = config.loader_threads;
  options.proceed = proceed;
  options.loss = grounds.loss;
  options.precision = config.precision;
  ProbeSubject subject(model, step, grounds.data, options);
  Measurement measurement{.step = step};
  for (const Probe* probe : probes) probe->measure(subject, measurement);
  return measurement;
}

DatasetOpener opener_of(Datasets& datasets) {
  return [&datasets](std::string_view name, std::string_view split) {
    return datasets.get(std::string(name), std::string(split));
  };
}

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

ExperimentRun plan_run(const PlannedRow& row, const RunsConfig& experiment, Datasets& datasets) {
  ExperimentRun run{.row = row.name, .config = config_of(experiment, row)};
  const std::shared_ptr<Model> shape = build_initial_shape(run.config);
  const std::vector<PhasePlan> plans = plan_phases(run.config, *shape, datasets);
  run.grounds = grounds_of(plans.back(), *shape, datasets);
  std::vector<std::string> names = experiment.probes;
  if (experiment.snapshots) {
    const std::vector<std::string>& while_training = experiment.snapshots->probes;
    run.every = experiment.snapshots->every;
    if (experiment.snapshots->by_epoch) run.every *= plans.back().steps_per_epoch;
    run.snapshot_probes =
        applicable(while_training, place_of(experiment.source, {"snapshots.probes"}), *shape,
                   run.grounds.data, run.snapshot_metrics);
    for (const std::string& name : while_training) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  run.probes = applicable(names, place_of(experiment.source, {"probes"}), *shape, run.grounds.data,
                          run.metrics);
  plan_after(row, experiment, *shape, plans, datasets, run);
  if (experiment.snapshots) {
    plan_snapshot_metrics(*experiment.snapshots, run);
    if (experiment.snapshots->by_epoch) run.converged_unit = plans.back().steps_per_epoch;
  }
  int64_t updates = 0;
  for (const PhasePlan& plan : plans) {
    if (plan.steps > 0) run.earlier_phases = std::exchange(updates, updates + plan.steps);
    run.phases.emplace_back(plan.steps, plan.batch);
  }
  return run;
}

std::optional<MadeRun> make_run(const ExperimentRun& run, int64_t index, Datasets& datasets,
                                const Going& going) {
  MadeRun made;
  RunRecord& record = made[run.row];
  TrainingTime time;
  std::vector<double> seconds;
  const auto take_snapshot = [&](Model& model, int64_t step) {
    // The last step of a run makes no update, so two snapshots may have the same step.
    const bool fresh = record.snapshots.empty() || record.snapshots.back().step != step;
    if (run.snapshot_probes.empty() || !fresh) return;
    record.snapshots.push_back(measured(run.config, run.grounds, run.snapshot_probes, model, step));
    seconds.push_back(time.seconds());
  };
  TrainerOptions options;
  options.progress = false;
  options.device = run.device;
  options.open = opener_of(datasets);
  int64_t before = -run.every;  // Step 0 is a multiple, too.
  options.watch = [&](Model& model, int64_t step) {
    if (!going(run.images(step))) return false;
    time.pause();
    if (passes_multiple(before, step, run.every)) take_snapshot(model, step);
    before = step;
    time.resume();
    return true;
  };
  Measurement after;
  options.phase_ended = [&](Model& model, const std::string& phase, int64_t step) {
    const auto found = run.after.find(phase);
    if (found == run.after.end()) return;
    const PhaseProbes& wanted = found->second;
    Measurement now = measured(run.config, wanted.grounds, wanted.probes, model, step);
    Measurement& to = wanted.row.empty() ? after : made[wanted.row].final;
    to.step = step;
    for (const auto& [metric, name] : wanted.names) {
      if (now.numbers.contains(metric)) to.numbers[name] = now.numbers.at(metric);
      if (now.tables.contains(metric)) to.tables[name] = std::move(now.tables.at(metric));
    }
  };
  RunConfig config = run.config;
  config.seed += index;
  Trainer trainer(std::move(config), std::move(options));
  const TrainResult result = trainer.run();
  if (!result.complete) return std::nullopt;
  time.pause();
  const std::shared_ptr<Model> model = trainer.model();
  take_snapshot(*model, result.steps);
  if (!seconds.empty()) seconds.back() = time.seconds();
  record.final = measured(run.config, run.grounds, run.probes, *model, result.steps);
  record.final.numbers.merge(after.numbers);
  record.final.tables.merge(after.tables);
  add_best(run.best, record);
  add_converged(run, seconds, record);
  return made;
}

}  // namespace moesaic
