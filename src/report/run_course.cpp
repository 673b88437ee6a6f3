// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_course.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>

#include "memory_run.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/cluster_mixture.h"
#include "moesaic/models/cluster_moe/cluster_moe.h"
#include "moesaic/ops/routing_statistics.h"
#include "run_log.h"
#include "run_pool.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using CourseJson = nlohmann::ordered_json;

/// A run and what its weights are held against.
struct PlannedCourse {
  std::string name;
  MemoryRun run;
  ClusterSignals signals;
};

ClusterSignals signals_of(const PhaseConfig& phase, const Dataset& data) {
  const Directions known = data.directions();
  const auto signal = known.find("signal"), centre = known.find("centre");
  if (signal != known.end() && centre != known.end()) return {signal->second, centre->second};
  fail_usage("{}: phase '{}': '{}' has no clusters; choose one of clusters-setting1 to 4",
             place_of(phase.source, {"data"}), phase.name, phase.data);
}

void check_mixture(const RunConfig& config) {
  const auto model = std::dynamic_pointer_cast<ClusterMoE>(build_initial_shape(config));
  if (model != nullptr && !model->moe.is_empty()) return;
  fail_usage("{}: a run-course watches a mixture: set model.name to '{}' and give it a router",
             place_of(config.model, {"router", "name"}), kClusterMoE);
}

PlannedCourse plan_course(const RunCourseConfig& course, const RunCourseRow& row,
                          Datasets& datasets) {
  RunConfig config = changed_run(course.train, row.set, course.max_steps);
  check_mixture(config);
  MemoryRun run = plan_memory_run(std::move(config), datasets);
  ClusterSignals signals = signals_of(run.config.phases.back(), *run.train.back());
  return {row.name, std::move(run), std::move(signals)};
}

std::vector<std::vector<double>> rows_of(const at::Tensor& numbers) {
  const at::Tensor doubles = numbers.to(at::kCPU, at::kDouble).contiguous();
  const auto at = doubles.accessor<double, 2>();
  std::vector<std::vector<double>> rows(static_cast<size_t>(at.size(0)));
  for (int64_t r = 0; r < at.size(0); ++r) {
    for (int64_t c = 0; c < at.size(1); ++c) rows[static_cast<size_t>(r)].push_back(at[r][c]);
  }
  return rows;
}

/// [M, K]: w_MdJ, vectors_Kd.
at::Tensor largest_products(const at::Tensor& w_MdJ, const at::Tensor& vectors_Kd) {
  return at::einsum("mdj,kd->mkj", {w_MdJ, vectors_Kd}).abs().amax(2);
}

CoursePoint look_at(ClusterMoE& model, int64_t step, const PlannedCourse& course) {
  const c10::InferenceMode inference;
  const Evaluation on_train =
      evaluate(model, course.run.train.back(), evaluate_options(course.run.config));
  const LayerRouting& layer = on_train.routing.back();
  const Dispatch& dispatch = layer.by_group.value_or(layer.by_class);
  const at::Tensor w_MdJ = model.experts->w, theta_Md = model.moe->router->weight;
  const ClusterSignals& signals = course.signals;
  return {.step = step,
          .entropy = dispatch.entropy,
          .dispatch = dispatch.rows,
          .expert_signal = rows_of(largest_products(w_MdJ, signals.v_Kd)),
          .expert_centre = rows_of(largest_products(w_MdJ, signals.c_Kd)),
          .router_signal = rows_of(theta_Md.mm(signals.v_Kd.t())),
          .router_centre = rows_of(theta_Md.mm(signals.c_Kd.t()))};
}

/// Nothing where `going` ended it.
std::optional<RunCourse> follow(const PlannedCourse& course, int64_t every,
                                const std::function<bool()>& going) {
  RunCourse seen;
  const auto watch = [&](Model& model, int64_t steps) {
    if (!going()) return false;
    // The step that ends a run makes no update, so that two may have one number.
    const bool fresh = seen.points.empty() || seen.points.back().step != steps;
    if (steps % every == 0 && fresh) {
      seen.points.push_back(look_at(dynamic_cast<ClusterMoE&>(model), steps, course));
    }
    return true;
  };
  const auto trained = train_in_memory(course.run, /*index=*/0, watch);
  if (!trained) return std::nullopt;
  auto& model = dynamic_cast<ClusterMoE&>(*trained->model);
  seen.steps = trained->steps;
  if (seen.points.empty() || seen.points.back().step != seen.steps) {
    seen.points.push_back(look_at(model, seen.steps, course));
  }
  seen.test_accuracy =
      evaluate(model, course.run.test, evaluate_options(course.run.config)).accuracy;
  return seen;
}

RunCourse course_in(const CourseJson& entry) {
  return parse<RunCourse>(Value::from_json(entry, "run"));
}

std::string course_problem(const CourseJson& entry) {
  try {
    course_in(entry);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

bool follow_all(const std::vector<PlannedCourse>& courses, int64_t every, RunLog& log,
                const ReproduceOptions& options) {
  std::vector<const PlannedCourse*> missing;
  for (const PlannedCourse& course : courses) {
    if (log.find(course.name, 0) == nullptr) missing.push_back(&course);
  }
  return make_runs(missing.size(), options,
                   [&](size_t task, const auto& going) -> std::optional<std::string> {
                     const PlannedCourse& course = *missing[task];
                     const auto seen = follow(course, every, going);
                     if (!seen) return std::nullopt;
                     log.add(course.name, 0, to_json(*seen));
                     return fmt::format("{}: {:.2f} %", course.name, seen->test_accuracy);
                   });
}

CourseJson settings_of_courses(const std::vector<PlannedCourse>& courses, int64_t every) {
  CourseJson json = CourseJson::object();
  for (const PlannedCourse& course : courses) json[course.name] = to_json(course.run.config);
  return {{"run-course", json}, {"every", every}};
}

template <class T>
bool is_table(const std::vector<std::vector<T>>& rows, size_t count, size_t columns) {
  return rows.size() == count && std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
           return row.size() == columns;
         });
}

double largest_of(const std::vector<std::vector<double>>& rows) {
  double largest = 0.0;
  for (const auto& row : rows) {
    for (const double value : row) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

double entropy_of(const PaperDispatch& paper) {
  std::vector<at::Tensor> rows;
  for (const auto& row : paper.final) rows.push_back(torch::tensor(row, at::kLong));
  return dispatch_entropy(at::stack(rows)).item<double>();
}

}  // namespace

ConfigProblem config_problem(const PaperDispatch& config) {
  if (config.final.empty()) return {"final must not be empty", {"final"}};
  if (is_table(config.final, config.final.size(), config.initial.size())) return {};
  return {fmt::format("every list of 'final' must have a number for each of the {} experts of "
                      "'initial'",
                      config.initial.size()),
          {"final"}};
}

ConfigProblem config_problem(const RunCourseConfig& config) {
  if (config.shows == "products" && config.rows.size() != 1) {
    return {fmt::format("products are those of one run, found {} rows", config.rows.size()),
            {"rows", "shows"}};
  }
  std::set<std::string> names;
  for (const RunCourseRow& row : config.rows) {
    if (!names.insert(row.name).second) {
      return {fmt::format("two rows are called '{}'", row.name), {"rows"}};
    }
  }
  return {};
}

ConfigProblem config_problem(const CoursePoint& config) {
  const size_t clusters = config.dispatch.size();
  const size_t experts = clusters > 0 ? config.dispatch.front().size() : 0;
  if (!is_table(config.dispatch, clusters, experts)) {
    return {"the lists of dispatch are of different lengths", {"dispatch"}};
  }
  for (const auto* products : {&config.expert_signal, &config.expert_centre, &config.router_signal,
                               &config.router_centre}) {
    if (!is_table(*products, experts, clusters)) {
      return {fmt::format("products must be lists of {} for {} experts", clusters, experts)};
    }
  }
  return {};
}

bool run_run_course(const RunCourseConfig& config, const ReproduceOptions& options,
                    std::vector<RunCourse>& courses) {
  if (options.out.empty()) fail_usage("an experiment needs a folder; give --out");
  Datasets datasets(options.open);
  std::vector<PlannedCourse> planned;
  for (const RunCourseRow& row : config.rows) planned.push_back(plan_course(config, row, datasets));
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error) fail("{}: cannot make the folder: {}", options.out.string(), error.message());
  const LockFile lock(options.out);
  claim_folder(options.out, settings_of_courses(planned, config.every));
  RunLog log(options.out / "runs.json", course_problem);
  if (!follow_all(planned, config.every, log, options)) return false;
  for (const PlannedCourse& course : planned) {
    courses.push_back(course_in(*log.find(course.name, 0)));
  }
  return true;
}

std::vector<ResultRow> run_course_rows(const RunCourseConfig& config,
                                       const std::vector<RunCourse>& courses) {
  std::vector<ResultRow> results;
  for (size_t r = 0; r < courses.size(); ++r) {
    const RunCourse& course = courses[r];
    const CoursePoint& last = course.points.back();
    const auto add = [&](const std::string& metric, double measured,
                         std::optional<double> paper = std::nullopt) {
      results.push_back(
          {.name = config.rows[r].name, .metric = metric, .measured = measured, .paper = paper});
    };
    const std::optional<PaperDispatch>& paper = config.rows[r].paper;
    add("test_accuracy", course.test_accuracy,
        paper ? std::optional(paper->test_accuracy) : std::nullopt);
    add("entropy", last.entropy, paper ? std::optional(entropy_of(*paper)) : std::nullopt);
    add("steps", static_cast<double>(course.steps));
    if (config.shows != "products") continue;
    add("largest_expert_signal", largest_of(last.expert_signal));
    add("largest_expert_centre", largest_of(last.expert_centre));
    add("largest_router_signal", largest_of(last.router_signal));
    add("largest_router_centre", largest_of(last.router_centre));
  }
  return results;
}

}  // namespace moesaic
