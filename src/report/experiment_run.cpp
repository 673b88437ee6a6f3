// SPDX-License-Identifier: Apache-2.0
#include "experiment_run.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/config/rules.h"
#include "moesaic/data/views.h"
#include "moesaic/report/probe.h"
#include "moesaic/train/run_plan.h"
#include "moesaic/train/trainer.h"

namespace moesaic {
namespace {

/// What is measured of a network.
struct ProbeContext {
  DataSplits data;  ///< Data of a phase, preprocessed.
  std::string loss;
  std::vector<const Probe*> probes = {};
  /// Of what is measured at the end of a phase: names in the results by metric, and the row of the
  /// results, "" for the run's own.
  std::map<std::string, std::string> names = {};
  std::string row = {};
};

struct ExperimentRun {
  RunConfig config;
  ProbeContext final = {}, snapshots = {};                 ///< All on the data of the last phase.
  std::map<std::string, ProbeContext> phase_metrics = {};  ///< By phase.
  std::vector<MeasuredRow> result_rows = {};               ///< See PreparedRow.
  std::vector<std::string> best = {};  ///< Metrics whose best snapshot is a metric, best_<name>.
  std::vector<std::string> converged = {};  ///< See SnapshotConfig.
  int64_t unit = 1;                         ///< Steps that `converged` counts as one.
  int64_t every = 1;                        ///< Steps between two snapshots.
  bool begins_last_phase = false;  ///< Whether one is before the last phase, for a plot of it.
  std::vector<std::pair<int64_t, int64_t>> phases = {};  ///< Planned steps, and images of each.

  /// Returns how many images the first so many steps take; all of them by default.
  int64_t images(int64_t num_steps = std::numeric_limits<int64_t>::max()) const {
    int64_t sum = 0;
    for (const auto& [steps, batch] : phases) {
      const int64_t made = std::min(steps, num_steps);
      sum += made * batch;
      num_steps -= made;
    }
    return sum;
  }
};

/// Returns what a phase's network is evaluated on: its data with the labels of its outputs.
ProbeContext probe_context_of(const PhasePlan& plan, const Model& shape, DatasetCache& datasets) {
  const PhaseConfig& phase = plan.config;
  ProbeContext probe_context{{}, objective_name(phase)};
  std::vector<std::string> splits = datasets.evaluation_splits(phase.data);
  splits.insert(splits.end(), {"test", "train"});  // Probes take these two for granted.
  for (const std::string& split : splits) {
    probe_context.data[split] = with_classes_of(
        datasets.get(phase.data, split, phase.preprocess, shape.input_shape()), plan.classes);
  }
  return probe_context;
}

/// Adds the probes of these names that apply to such a network, and their metrics to `metrics`.
void add_probes(const std::vector<std::string>& names, const std::string& where, const Model& shape,
                ProbeContext& probe_context, std::vector<Metric>& metrics) {
  for (const std::string& name : names) {
    const Probe& probe = probes().at(name, where);
    const std::vector<Metric> gives = probe.metrics(shape, probe_context.data);
    if (gives.empty()) continue;
    probe_context.probes.push_back(&probe);
    metrics.insert(metrics.end(), gives.begin(), gives.end());
  }
}

/// Adds the probes of these metrics, which are measured at the end of a phase, and the metrics by
/// their names in the results to `metrics`.
void add_probes_after(std::map<std::string, std::string> names, const std::string& where,
                      const Model& shape, ProbeContext& probe_context,
                      std::vector<Metric>& metrics) {
  std::vector<std::string> known;
  for (const std::string& name : probes().names()) {
    const Probe& probe = probes().at(name);
    bool wanted = false;
    for (Metric& metric : probe.metrics(shape, probe_context.data)) {
      known.push_back(metric.name);
      const auto found = names.find(metric.name);
      if (found == names.end()) continue;
      if (found->second != metric.name) metric.label = found->second + ": " + metric.label;
      metric.name = found->second;
      metrics.push_back(std::move(metric));
      probe_context.names.insert(names.extract(found));
      wanted = true;
    }
    if (wanted) probe_context.probes.push_back(&probe);
  }
  if (names.empty()) return;
  fail_usage("{}: no probe gives such a network the metric '{}'; {}", where, names.begin()->first,
             did_you_mean(names.begin()->first, known));
}

/// Plans what is measured at the ends of phases, for the run's own row or for earlier ones.
void plan_phase_metrics(const PlannedRow& row, const RunsConfig& experiment, const Model& shape,
                        const std::vector<PhasePlan>& plans, DatasetCache& datasets,
                        MeasuredRow& own, ExperimentRun& run) {
  std::map<std::string, std::string> earlier = row.phase_rows;
  for (const PhasePlan& plan : plans) {
    const std::string& phase = plan.config.name;
    const auto wanted = experiment.phase_metrics.find(phase);
    if (wanted == experiment.phase_metrics.end()) continue;
    ProbeContext& probe_context = run.phase_metrics[phase] =
        probe_context_of(plan, shape, datasets);
    const auto elsewhere = earlier.extract(phase);
    if (!elsewhere.empty()) probe_context.row = elsewhere.mapped();
    auto filled = std::ranges::find(run.result_rows, probe_context.row, &MeasuredRow::name);
    if (!probe_context.row.empty() && filled == run.result_rows.end()) {
      filled = run.result_rows.insert(filled, MeasuredRow{probe_context.row, {}});
    }
    add_probes_after(
        wanted->second, location_of(experiment.source, {"phase_metrics." + phase, "phase_metrics"}),
        shape, probe_context, probe_context.row.empty() ? own.metrics : filled->metrics);
  }
  if (earlier.empty()) return;
  fail_usage(
      "{}: row '{}': 'phase_rows' names the phase '{}', at whose end 'phase_metrics' measures "
      "nothing",
      location_of(experiment.source, {"rows", "grid"}), row.name, earlier.begin()->first);
}

/// Returns -1 for a metric of which less is better.
double sign_of(const std::string& metric) {
  return metric.ends_with("loss") ? -1.0 : 1.0;
}

/// Adds the best snapshot's value of each of these metrics to the run's end.
void add_best(const std::vector<std::string>& metrics, RunRecord& record) {
  for (const std::string& metric : metrics) {
    std::optional<double> best;
    for (const Measurement& at : record.snapshots) {
      const auto value = at.numbers.find(metric);
      if (value == at.numbers.end() || !std::isfinite(value->second)) continue;
      if (!best || sign_of(metric) * (value->second - *best) > 0.0) best = value->second;
    }
    if (best) record.final.numbers["best_" + metric] = *best;
  }
}

/// Adds when each of these metrics was first about as good as in the last snapshot; `seconds` is
/// the time of training until each snapshot.
void add_converged(const ExperimentRun& run, const std::vector<double>& seconds,
                   RunRecord& record) {
  constexpr double kWithin = 0.5;
  if (run.converged.empty()) return;
  const Measurement& end = record.snapshots.back();
  const int64_t begin = run.result_rows.back().steps_before_last_phase;
  if (end.step > 0) {
    record.final.numbers[kStepSeconds] = seconds.back() / static_cast<double>(end.step);
  }
  for (const std::string& metric : run.converged) {
    const auto last = end.numbers.find(metric);
    if (last == end.numbers.end()) continue;
    for (size_t i = 0; i < record.snapshots.size(); ++i) {
      const Measurement& at = record.snapshots[i];
      const auto value = at.numbers.find(metric);
      if (at.step <= begin || value == at.numbers.end()) continue;  // It has not begun.
      if (sign_of(metric) * (value->second - last->second) < -kWithin) continue;
      record.final.numbers[kConverged + metric] =
          static_cast<double>(at.step - begin) / static_cast<double>(run.unit);
      record.final.numbers[kSecondsTo + metric] = seconds[i];
      break;
    }
  }
}

/// Adds to the run's metrics those that its snapshots become.
void plan_snapshot_metrics(const SnapshotConfig& snapshots, MeasuredRow& own, ExperimentRun& run) {
  const auto no_number = [&](const std::string& name) {
    const Metric* metric = find_metric(own.snapshot_metrics, name);
    return metric == nullptr || metric->is_table;
  };
  std::erase_if(run.best = snapshots.best, no_number);
  for (const std::string& name : run.best) {
    Metric& metric = own.metrics.emplace_back(*find_metric(own.snapshot_metrics, name));
    metric.name.insert(0, "best_");
    metric.label.insert(0, "best ");
  }
  const auto add_time = [&](std::string name, std::string label, int digits, bool optional) {
    own.metrics.push_back(amount_metric(std::move(name), std::move(label), digits));
    own.metrics.back().is_optional = optional;
  };
  std::erase_if(run.converged = snapshots.converged, no_number);
  for (const std::string& name : run.converged) {
    const Metric& metric = *find_metric(own.snapshot_metrics, name);
    // Without its unit, as in "test accuracy, %".
    const std::string until =
        "until " + metric.label.substr(0, metric.label.find(',')) + " converges";
    add_time(kConverged + name, (snapshots.by_epoch ? "epochs " : "steps ") + until, 1,
             metric.is_optional);
    add_time(kSecondsTo + name, "seconds " + until, 2, metric.is_optional);
  }
  if (!run.converged.empty()) add_time(kStepSeconds, "seconds a step", 4, true);
}

/// Returns the measurement of a network at a step of such a run.
Measurement measured(const RunConfig& config, const ProbeContext& probe_context, Model& model,
                     int64_t step, const std::function<std::shared_ptr<Model>()>& start) {
  const c10::InferenceMode inference;
  ProbedModel subject(model, step, probe_context.data,
                      {.batch_size = config.evaluate_batch_size,
                       .num_loader_threads = config.num_loader_threads,
                       .loss = probe_context.loss,
                       .precision = config.precision},
                      start);
  Measurement measurement{.step = step};
  for (const Probe* probe : probe_context.probes) probe->measure(subject, measurement);
  return measurement;
}

ExperimentRun plan_run(RunConfig config, const PlannedRow& row, const RunsConfig& experiment,
                       DatasetCache& datasets) {
  ExperimentRun run{.config = std::move(config)};
  const std::shared_ptr<Model> shape = build_initial_meta_model(run.config);
  const std::vector<PhasePlan> plans = plan_phases(run.config, *shape, datasets);
  MeasuredRow own{row.name, {}};
  run.final = run.snapshots = probe_context_of(plans.back(), *shape, datasets);
  std::vector<std::string> names = experiment.probes;
  if (experiment.snapshots) {
    const SnapshotConfig& snapshots = *experiment.snapshots;
    if (snapshots.by_epoch) run.unit = plans.back().steps_per_epoch;
    run.every = snapshots.every * run.unit;
    run.begins_last_phase = std::ranges::any_of(experiment.plots, &PlotConfig::last_phase);
    add_probes(snapshots.probes, location_of(experiment.source, {"snapshots.probes"}), *shape,
               run.snapshots, own.snapshot_metrics);
    for (const std::string& name : snapshots.probes) {
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    }
  }
  add_probes(names, location_of(experiment.source, {"probes"}), *shape, run.final, own.metrics);
  plan_phase_metrics(row, experiment, *shape, plans, datasets, own, run);
  if (experiment.snapshots) plan_snapshot_metrics(*experiment.snapshots, own, run);
  run.result_rows.push_back(std::move(own));
  int64_t num_steps = 0, earlier = 0;
  for (const PhasePlan& plan : plans) {
    if (plan.steps > 0) earlier = std::exchange(num_steps, num_steps + plan.steps);
    run.phases.emplace_back(plan.steps, plan.batch_size);
  }
  for (MeasuredRow& filled : run.result_rows) {
    filled.steps_before_last_phase = earlier;
    filled.first_seed = run.config.seed;
  }
  return run;
}

/// Trains and measures a run. Returns nothing where `on_images` ended it.
std::optional<RunResult> make_run(const ExperimentRun& run, int64_t index,
                                  const std::string& device, DatasetCache& datasets,
                                  const ImageCallback& on_images) {
  RunResult made;
  RunRecord& record = made[run.result_rows.back().name];
  RunConfig config = run.config;
  config.seed += index;
  std::shared_ptr<Model> first;  // Made once a probe asks for it.
  const auto start = [&] {
    const c10::InferenceMode outside(false);
    if (!first) first = RunStart(config).model();
    return first;
  };
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> since;  // Measuring interrupts training.
  double trained = 0.0;
  std::vector<double> seconds;
  const auto pause = [&] {
    if (since) trained += std::chrono::duration<double>(Clock::now() - *since).count();
    since.reset();
  };
  const auto take_snapshot = [&](Model& model, int64_t step) {
    // The last step of a run may change nothing, so two snapshots may have the same step.
    const bool fresh = record.snapshots.empty() || record.snapshots.back().step != step;
    if (run.snapshots.probes.empty() || !fresh) return;
    record.snapshots.push_back(measured(run.config, run.snapshots, model, step, start));
    seconds.push_back(trained);
  };
  TrainerOptions options{.device = device, .show_progress = false, .open = opener_of(datasets)};
  int64_t before = -run.every;  // Step 0 is a multiple, too.
  const int64_t last_phase = run.result_rows.back().steps_before_last_phase;
  options.on_step = [&](Model& model, int64_t step) {
    if (!on_images(run.images(step))) return false;
    pause();
    const bool begins = run.begins_last_phase && before < last_phase && step >= last_phase;
    if (begins || passes_multiple(before, step, run.every)) take_snapshot(model, step);
    before = step;
    since = Clock::now();
    return true;
  };
  Measurement after;
  options.on_phase_end = [&](Model& model, const std::string& phase, int64_t step) {
    const auto found = run.phase_metrics.find(phase);
    if (found == run.phase_metrics.end()) return;
    const ProbeContext& wanted = found->second;
    Measurement now = measured(run.config, wanted, model, step, start);
    Measurement& to = wanted.row.empty() ? after : made[wanted.row].final;
    to.step = step;
    for (const auto& [metric, name] : wanted.names) {
      if (now.numbers.contains(metric)) to.numbers[name] = now.numbers.at(metric);
      if (now.tables.contains(metric)) to.tables[name] = std::move(now.tables.at(metric));
    }
  };
  Trainer trainer(config, std::move(options));
  const TrainResult result = trainer.run();
  if (!result.is_complete) return std::nullopt;
  pause();
  const std::shared_ptr<Model> model = trainer.model();
  take_snapshot(*model, result.steps);
  if (!seconds.empty()) seconds.back() = trained;
  record.final = measured(run.config, run.final, *model, result.steps, start);
  record.final.numbers.merge(after.numbers);
  record.final.tables.merge(after.tables);
  add_best(run.best, record);
  add_converged(run, seconds, record);
  return made;
}

}  // namespace

DatasetOpener opener_of(DatasetCache& datasets) {
  return DatasetOpener(
      [&datasets](std::string_view name, std::string_view split) {
        return datasets.get(std::string(name), std::string(split));
      },
      [&datasets](std::string_view name) { return datasets.splits(name); });
}

PreparedRow prepare_run(RunConfig config, const PlannedRow& row, const RunsConfig& experiment,
                        const std::string& device, DatasetCache& datasets) {
  const auto run =
      std::make_shared<ExperimentRun>(plan_run(std::move(config), row, experiment, datasets));
  return {.name = row.name,
          .result_rows = run->result_rows,
          .num_runs = row.num_runs,
          .images = run->images(),
          .make = [run, device, &datasets](int64_t index, const ImageCallback& on_images) {
            return make_run(*run, index, device, datasets, on_images);
          }};
}

}  // namespace moesaic
