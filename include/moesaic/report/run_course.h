// SPDX-License-Identifier: Apache-2.0
// The experiment "run-course": a few runs of the clusters paper's networks that are watched while
// they train: which experts the clusters come to, and what filters and router have in common with
// the data's signals and centres.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/report/prune_sweep.h"
#include "moesaic/report/results.h"

namespace moesaic {

/// A dispatch that a paper prints.
struct PaperDispatch {
  double test_accuracy = 0.0;
  std::vector<int64_t> initial;
  std::vector<std::vector<int64_t>> final;
};
template <class Fields>
void describe(Fields& f, PaperDispatch& c) {
  f("test_accuracy", c.test_accuracy, "of the network with this dispatch, %", required,
    between(0.0, 100.0));
  f("initial", c.initial, "examples of each expert before training", required, at_least(0));
  f("final", c.final, "and after it, a list for each cluster", required, at_least(0));
}
/// All its lists have a number for each expert.
ConfigProblem config_problem(const PaperDispatch& config);

struct RunCourseRow {
  std::string name;
  Value set;
  std::optional<PaperDispatch> paper;
};
template <class Fields>
void describe(Fields& f, RunCourseRow& c) {
  f("name", c.name, "of the run", required, not_empty);
  f("set", c.set, "settings of the run, by dotted name");
  f("paper", c.paper, "a dispatch that the paper prints, to stand beside the run's");
}

struct RunCourseConfig {
  std::string name, kind, description;
  std::string shows;
  int64_t every = 10;
  int64_t max_steps = 0;
  Value train;
  std::vector<RunCourseRow> rows;
  Value quick;
};
template <class Fields>
void describe(Fields& f, RunCourseConfig& c) {
  f("name", c.name, "of the experiment", required, not_empty);
  f("kind", c.kind, "what is done", required, one_of({"run-course"}));
  f("description", c.description, "one line for lists and the report", required, not_empty);
  f("shows", c.shows,
    "entropy of the dispatch over training, products of weights with signals and centres, or the "
    "dispatch at the end",
    required, one_of({"entropy", "products", "dispatch"}));
  f("every", c.every, "updates between two looks at a run", at_least(1));
  f("max_steps", c.max_steps, "no phase of a run makes more updates; 0: as they are configured",
    at_least(0));
  f("train", c.train, "the run that rows change: a mixture of cluster-moe on generated clusters",
    required);
  f("rows", c.rows, "the runs", required, not_empty);
  f("quick", c.quick, "settings of --scale quick, by dotted name");
}
/// Products are those of one run; names differ.
ConfigProblem config_problem(const RunCourseConfig& config);

/// A look at a run, with K clusters and M experts.
struct CoursePoint {
  int64_t step = 0;                            ///< updates made before
  double entropy = 0.0;                        ///< of the dispatch, eq. 6.1 of the clusters paper
  std::vector<std::vector<int64_t>> dispatch;  ///< [K][M] training examples
  /// [M][K]: the largest |<w, v_k>| and |<w, c_k>| of an expert's filters w.
  std::vector<std::vector<double>> expert_signal, expert_centre;
  /// [M][K]: <theta_m, v_k> and <theta_m, c_k> of the router's rows.
  std::vector<std::vector<double>> router_signal, router_centre;
};
template <class Fields>
void describe(Fields& f, CoursePoint& c) {
  f("step", c.step, "updates made before", required, at_least(0));
  f("entropy", c.entropy, "of the dispatch of the training data", required, at_least(0.0));
  f("dispatch", c.dispatch, "examples by cluster and expert", required, not_empty, at_least(0));
  f("expert_signal", c.expert_signal, "largest products of filters by expert and signal", required,
    not_empty);
  f("expert_centre", c.expert_centre, "the same by expert and centre", required, not_empty);
  f("router_signal", c.router_signal, "products of the router by expert and signal", required,
    not_empty);
  f("router_centre", c.router_centre, "the same by expert and centre", required, not_empty);
}
ConfigProblem config_problem(const CoursePoint& config);

/// What a run came to, and how.
struct RunCourse {
  double test_accuracy = 0.0;  ///< %
  int64_t steps = 0;
  std::vector<CoursePoint> points;  ///< at least the first and the last
};
template <class Fields>
void describe(Fields& f, RunCourse& c) {
  f("test_accuracy", c.test_accuracy, "at the end, %", required);
  f("steps", c.steps, "updates made", required, at_least(0));
  f("points", c.points, "looks at the run", required, not_empty);
}

/// Makes the runs side by side, each a function of its settings. The data is looked at as it is in
/// evaluation. `out` gets config.json and runs.json, where finished runs are kept, so that the same
/// call goes on where a former one stopped. Returns false, with `courses` incomplete, where a
/// signal stopped it. Throws Error: usage for settings that do not fit each other, before anything
/// is trained, and where `out` was made with others.
bool run_run_course(const RunCourseConfig& config, const ReproduceOptions& options,
                    std::vector<RunCourse>& courses);

/// test_accuracy, entropy and steps of each run at its end, beside those of the paper's dispatch;
/// where products are shown, also the largest of each kind.
std::vector<ResultRow> run_course_rows(const RunCourseConfig& config,
                                       const std::vector<RunCourse>& courses);

}  // namespace moesaic
