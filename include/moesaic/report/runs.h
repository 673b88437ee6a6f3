// SPDX-License-Identifier: Apache-2.0
// The experiment "runs": a grid of rows x seeds over a run's configuration, or what a run trains
// pruned to several sizes by several criteria, recovered, measured and timed; the probes that
// measure it, its plots, the values that a paper prints, tables and figures.
#pragma once

#include <cstddef>

#include "moesaic/prune/plan.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/throughput.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

struct RunsConfig;

/// Settings of `export` in a pruning experiment.
struct ExportChoice {
  int64_t num_experts = 0;
  std::string criterion;
  bool evaluate_pt2 = false;
};
void describe(auto& f, ExportChoice& c) {
  f("num_experts", c.num_experts, "number of experts per layer of the exported network", required,
    at_least(1), renamed_from("keep"));
  f("criterion", c.criterion, "criterion that chose the network's experts", required);
  f("evaluate_pt2", c.evaluate_pt2,
    "export to a .pt2 too, which is evaluated and timed; where Python cannot write it, a warning");
}

/// A choice of how many experts stay in each layer.
struct LayerChoice {
  std::string name;
  Value keep;
};
void describe(auto& f, LayerChoice& c) {
  f("name", c.name, "name of the choice's rows", required, not_empty);
  f("keep", c.keep,
    "kept experts: {\"<block>\": count or [ids]}, or {\"count\": 4, \"exclude_blocks\": [9]} and "
    "the like",
    required);
}
ConfigProblem config_problem(const LayerChoice& choice);

/// Returns all items that `criteria` may have: "random", and with its own replacement
/// "random.mean".
std::vector<std::string> sweep_criterion_names();

/// Settings of a RunsConfig, beside its other ones.
struct SweepConfig {
  std::vector<int64_t> keep, exclude_blocks;
  std::vector<LayerChoice> per_layer;
  std::vector<std::string> criteria, plotted_criteria;
  std::optional<std::string> replace;
  int64_t num_calibration_images = 1024;
  std::string finetuned;
  std::optional<PhaseConfig> recover;
  ThroughputConfig throughput;
  std::optional<ExportChoice> exported;
  Value baseline_results;

  /// Returns whether the experiment prunes.
  bool is_given() const { return !keep.empty(); }
  /// Returns an item of `criteria`; one without its own replacement has that of all.
  CriterionChoice choice(const std::string& text) const {
    CriterionChoice parsed = CriterionChoice::parse(text);
    if (!parsed.replace) parsed.replace = replace;
    return parsed;
  }
};
void describe(auto& f, SweepConfig& c) {
  f("keep", c.keep,
    "numbers of kept experts per layer of the trained network: a row for each; empty: no pruning",
    not_empty, at_least(1));
  f("exclude_blocks", c.exclude_blocks,
    "blocks that keep all experts, whatever keep says; empty: none", at_least(0),
    renamed_from("whole"));
  f("per_layer", c.per_layer,
    "choices of different numbers of experts per layer, besides those of keep; empty: none",
    renamed_from("by_layer"));
  f("criteria", c.criteria,
    "criteria that rank the experts (moesaic list criteria), alone or with a replacement instead "
    "of 'replace' (random.mean, random.reroute); empty: refused with 'keep'",
    not_empty, one_of(sweep_criterion_names(), "CRITERION | CRITERION.REPLACEMENT"));
  f("plotted_criteria", c.plotted_criteria,
    "items of 'criteria' that the figure draws; others are left out; empty: the first six",
    one_of(sweep_criterion_names(), "CRITERION | CRITERION.REPLACEMENT"));
  f("replace", c.replace, replace_help(), one_of(replacement_names()));
  f("num_calibration_images", c.num_calibration_images,
    "number of images for criteria and replacements that need them, from the last phase's "
    "validation split, or without one from its training data",
    between(1, kMaxMeasuredImages), renamed_from("images"), renamed_from("calibration_images"));
  f("finetuned", c.finetuned,
    "run or checkpoint to prune, compared with train.init by criteria, on the data of train's last "
    "phase; empty: the trained network");
  f("recover", c.recover,
    "settings of the phase after pruning, on the data of the last one; null: none");
  f("throughput", c.throughput, "timing of forward passes");
  f("export", c.exported,
    "export to TorchScript of a recovered network of the first run; null: none");
  f("baseline_results", c.baseline_results,
    "results.json of an earlier, longer series of runs, shown beside these; null: none",
    renamed_from("kept"));
}

/// A phase of the training runs, evaluated on the test split of its data.
struct SweepPhase {
  std::string name, data;
  int64_t num_images = 0;  ///< Number of images in the test split.
};

/// How many experts the networks of one size keep.
struct SweepSize {
  std::string name;  ///< "keep4", or the name of a choice by layer; rows and folders begin with it.
  int64_t count = 0;  ///< Experts in each layer; 0 of a choice by layer.
  std::string text;   ///< "4 of 8", or "halves (4, 8)" with the experts of each layer.
  KeepSpec keep;
};

/// What a sweep makes, for its tables and its figure.
struct SweepPlan {
  RunConfig train;  ///< The run that is pruned; of a network that is given its last phase alone.
  std::shared_ptr<const Model> shape;  ///< The unpruned network, on the meta device.
  int64_t num_experts = 0;             ///< Experts per layer of the unpruned network.
  std::vector<SweepPhase> phases;
  /// Numbers of kept experts and choices, as configured; ahead of them the number of all experts
  /// where it is not among them, since costs are fractions of that network's.
  std::vector<SweepSize> sizes;
  std::vector<std::string> criteria;  ///< Criteria as configured.
  std::vector<std::string> plotted;   ///< Those that the figure draws.
  std::optional<ExportChoice> exported;
};

/// Returns what the sweep of this experiment makes; `rows` are those that it measured, if
/// any. Throws Error (usage) for a size that its network cannot have.
SweepPlan sweep_plan(const RunsConfig& config, const std::vector<MeasuredRow>& rows = {});

/// Returns the name of the size that keeps a number of experts in each layer.
std::string sweep_size_name(int64_t keep);

/// Returns the name of a pruned network's row, "keep<N>/<criterion>" or "<choice>/<criterion>".
std::string sweep_row_name(const std::string& size, const std::string& criterion);

/// Returns the metrics of a pruned network's row, or of a phase's.
const std::vector<Metric>& sweep_metrics(bool is_of_network);

/// The file of the exported network in the experiment's folder.
inline constexpr const char* kSweepModel = "model.ts.pt";
/// The exported network as a program of torch.export, and the row of its measurements.
inline constexpr const char* kSweepProgram = "model.pt2";
inline constexpr const char* kSweepProgramRow = "export/pt2";

/// Adds to the rows of networks each run's loss of accuracy against fine-tuning, in points. The
/// first run's rows also get savings against the network with the most parameters, in %:
/// parameters, FLOPs (by routed rows, and by capacity) and time of a forward pass.
void add_savings(const SweepPlan& plan, std::vector<MeasuredRow>& rows);

/// A point on an axis of the grid, or a single row.
struct RowConfig {
  std::string name;
  Value set;
  std::optional<int64_t> num_runs;
  std::map<std::string, std::string> phase_rows;
};
void describe(auto& f, RowConfig& c) {
  f("name", c.name, "name of the row; in a grid, its part of the rows' names", required, not_empty);
  f("set", c.set, "settings of the run, by dotted name; null: none");
  f("num_runs", c.num_runs, "number of runs; null: the experiment's", at_least(1),
    renamed_from("runs"));
  f("phase_rows", c.phase_rows,
    "row of the results that receives the measurements of 'phase_metrics', by phase; empty, or "
    "missing phases: the run's own row",
    renamed_from("earlier"));
}

/// What the names of metrics begin with that SnapshotConfig::converged adds.
inline constexpr const char *kConverged = "converged_", *kSecondsTo = "seconds_to_";

/// Settings of `snapshots`.
struct SnapshotConfig {
  int64_t every = 10;
  bool by_epoch = false;
  std::vector<std::string> probes, best, converged;
};
void describe(auto& f, SnapshotConfig& c) {
  f("every", c.every, "number of steps between two snapshots", at_least(1));
  f("by_epoch", c.by_epoch, "unit of 'every': epochs of the last phase (true) or steps (false)");
  f("probes", c.probes, "probes measured at each snapshot", required, not_empty);
  f("best", c.best,
    "metrics whose value at a run's best snapshot is reported too, as best_<metric>: the smallest "
    "for a loss, the largest for others; empty: none");
  f("converged", c.converged,
    "metrics whose time of convergence is reported too, that of the last phase's first snapshot at "
    "most 0.5 (accuracies: points) worse than the last one; converged_<metric>: in the unit of "
    "'by_epoch'; seconds_to_<metric>: in seconds of training; step_seconds: mean seconds of a "
    "step; empty: none");
}

ConfigProblem config_problem(const SnapshotConfig& config);

/// Settings of a plot.
struct PlotConfig {
  std::string kind;
  std::vector<std::string> metrics, rows, series;
  std::vector<double> x;
  std::string x_label;
  bool last_phase = false, log_y = false;
};
void describe(auto& f, PlotConfig& c) {
  f("kind", c.kind,
    "kind of the plot; points: rows with error bars; curves: snapshots with bands; heatmap: "
    "tables; scatter: one metric over another; power: the power laws of 'fits'; lines, map: "
    "rows that differ in a size; stems: tables over their columns",
    required, one_of({"points", "curves", "heatmap", "scatter", "power", "lines", "map", "stems"}));
  f("metrics", c.metrics,
    "metrics shown, one per panel; of a scatter plot those of the horizontal and the vertical axis",
    required, not_empty);
  f("rows", c.rows, "names of the rows shown; empty: all");
  f("series", c.series,
    "names of the curves of lines and map (rows are named by curve and size); empty: for other "
    "kinds");
  f("x", c.x, "sizes along the x axis of lines and map; empty: for other kinds");
  f("x_label", c.x_label, "label of the x axis of lines, map and power; empty: none (power: x)");
  f("last_phase", c.last_phase,
    "restriction of curves to each run's last phase, from its first step");
  f("log_y", c.log_y, "logarithmic y axis of curves, without means of 0");
}
ConfigProblem config_problem(const PlotConfig& config);

/// A power law over rows: metric ~ x^exponent. Or over curves, whose rows differ in a size: the
/// size at which the metric reaches a level ~ x^exponent.
struct FitConfig {
  std::string name, metric;
  std::map<std::string, double> x;
  std::optional<double> level;
  std::vector<double> sizes;

  /// Name of the exponent in the results.
  std::string exponent() const { return level ? "size_exponent" : metric + "_exponent"; }
};
void describe(auto& f, FitConfig& c) {
  f("name", c.name, "name of the row of the exponent in the results, and in 'paper'", required,
    not_empty);
  f("metric", c.metric,
    "metric whose logarithm is fitted; the result is <metric>_exponent, or size_exponent with a "
    "level",
    required, not_empty);
  f("x", c.x,
    "values on the x axis by name of a row, or with a level by name of a curve (rows are named by "
    "curve and size); runs of the same index are fitted together",
    required, not_empty, above(0.0));
  f("level", c.level,
    "metric value whose size on each curve is fitted; null: the metric is fitted");
  f("sizes", c.sizes, "sizes of the curves, ascending, in the rows' names; empty: without level",
    not_empty, above(0.0));
}
ConfigProblem config_problem(const FitConfig& config);

/// A point of a power law.
struct FitPoint {
  double x = 0.0, y = 0.0, std = 0.0;
};
/// Returns the points of a fit: means of its rows, or of each of its curves that has one the size
/// at which its means reach the level.
std::vector<FitPoint> fit_points(const FitConfig& fit, const std::vector<ResultRow>& results);

/// Returns the exponent of a fit, by least squares of logarithms: of rows the mean over the runs
/// that all of them have; of curves that of their means, with the standard deviation of the
/// jackknife's pseudo-values. Nothing, with a warning, where a curve does not cross the level.
/// Throws Error (failure) for a run without a value above 0.
std::optional<ResultRow> fit_row(const FitConfig& fit, const std::vector<MeasuredRow>& rows,
                                 const std::vector<ResultRow>& results);

/// Settings of an experiment of kind "runs".
struct RunsConfig {
  std::string name, kind, description;
  int64_t num_runs = 10, max_steps = 0;
  Value train, set;
  std::vector<RowConfig> rows;
  std::vector<std::vector<RowConfig>> grid;
  SweepConfig sweep;
  std::string separator = ", ";
  std::vector<std::string> probes = {"test_accuracy", "entropy", "steps"};
  std::map<std::string, std::map<std::string, std::string>> phase_metrics;
  std::optional<SnapshotConfig> snapshots;
  std::vector<PlotConfig> plots = {{"points", {"test_accuracy"}}};
  std::vector<FitConfig> fits;
  std::vector<RatioConfig> ratios;
  PaperValues paper;
  Value quick;
  Value source;  ///< Origin in the configuration.
};
void describe(auto& f, RunsConfig& c) {
  f("name", c.name, "name of the experiment", required, not_empty);
  f("kind", c.kind, "kind of the experiment", required, one_of({"runs"}));
  f("description", c.description, "one-line description for lists and the report", required,
    not_empty);
  f("num_runs", c.num_runs, "number of runs per row, with consecutive seeds", between(1, 10000),
    renamed_from("runs"));
  f("max_steps", c.max_steps, "largest number of steps of a phase; 0: as configured", at_least(0));
  f("train", c.train, "recipe that rows change, or whose network is pruned to 'keep' experts",
    required);
  f("set", c.set,
    "settings of every run, by dotted name, applied before those of its row; null: none");
  f("rows", c.rows, "rows of the results, one configuration each; empty: those of the grid");
  f("grid", c.grid, "axes of a grid, each a list of points: a row per combination; empty: no grid");
  describe(f, c.sweep);
  f("separator", c.separator, "separator between the names of a row's points");
  f("probes", c.probes, "probes measured at the end of a run");
  f("phase_metrics", c.phase_metrics,
    "metrics measured at the end of a phase, by phase, with their names in the results; rows "
    "without the phase have none; empty: none",
    renamed_from("after"));
  f("snapshots", c.snapshots, "measurements made during training; null: none");
  f("plots", c.plots, "plots of the results, a figure each", not_empty);
  f("fits", c.fits, "power laws fitted over rows, with their exponents; empty: none");
  f("ratios", c.ratios, "ratios of two rows or curves, added to the results as rows; empty: none");
  f("paper", c.paper,
    "values printed in the paper, by row and metric: a value, [value, std], the bound of a claim "
    "{\"at_most\": 1} or {\"at_least\": 90}, or for a table {\"rows\": lists, \"initial\": sums "
    "before training}; empty: none");
  f("quick", c.quick, "settings of --scale quick, by dotted name; null: none");
}
ConfigProblem config_problem(const RunsConfig& config);

/// A row of the experiment: the run's configuration with every element of `sets`,
/// {"dotted.key": value}, applied in order.
struct PlannedRow {
  std::string name;
  std::vector<Value> sets;
  int64_t num_runs = 0;
  std::map<std::string, std::string> phase_rows = {};  ///< Other rows of the results, by phase.

  /// Returns the names of all rows of the results that its runs fill, its own last.
  std::vector<std::string> names() const;
};

/// Returns all rows: the single rows, then those of the grid, whose first axis varies slowest.
std::vector<PlannedRow> planned_rows(const RunsConfig& config);

/// Checks every row and returns a table of them as text: runs, phases and steps.
std::string plan_rows_of(const RunsConfig& config);

/// Makes all runs, in parallel on one thread each, or where rows are pruned networks one after the
/// other with a folder each; run i of a row is a function of its settings and seed + i. Writes
/// config.json and runs.json, with every finished run, to `out`, so that the same call continues
/// after an interruption, and other rows may join. Returns false, with `rows` incomplete, if
/// a signal stopped it. Throws Error (usage) for settings that do not fit each other and for
/// metrics that no row has, before anything is trained, and if `out` was made with other settings.
bool measure_rows(const RunsConfig& config, const ReproduceOptions& options,
                  std::vector<MeasuredRow>& rows);

/// Returns every number of every row, in the order of the probes: mean and standard deviation over
/// the runs beside the paper's values; then the exponents of the fits and the ratios.
std::vector<ResultRow> runs_results(const RunsConfig& config, const std::vector<MeasuredRow>& rows);

/// What an experiment leaves in its folder, and what it says on a terminal.
struct Report {
  std::string markdown, summary;  ///< Text of report.md, and of a terminal.
  std::vector<Figure> figures;
};

/// Returns the report of rows, with the figures of all plots; `out` is the folder of the files.
Report runs_report(const Experiment& experiment, const RunsConfig& config,
                   const std::vector<MeasuredRow>& rows, const Results& results,
                   const fs::path& out);

/// Returns one figure for each plot of the experiment, in order.
std::vector<Figure> runs_figures(const RunsConfig& config, const std::vector<MeasuredRow>& rows,
                                 const Results& results);

/// Returns "figure", "figure-2", ...
std::string figure_stem(size_t index);

/// Returns a line "<what>   <value>" of a summary.
std::string summary_line(const std::string& what, const std::string& value);
/// Returns the lines of a summary that name so many figures, after `more` the other files.
std::string files_summary(const fs::path& out, size_t figures, const std::string& more = "");

/// Returns the report of a sweep, with a figure of two panels over the fraction of pruned
/// parameters: accuracy by criterion, and costs. Beside one run stand the rows of `kept`, the
/// results of more.
Report sweep_report(const Experiment& experiment, const SweepPlan& plan, const Results& results,
                    const fs::path& out, const Results& kept = {});

}  // namespace moesaic
