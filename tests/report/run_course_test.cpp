// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/run_course.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/support.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "moesaic/base/resources.h"
#include "moesaic/config/document.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/cluster_mixture.h"
#include "moesaic/models/cluster_moe/cluster_moe.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/reproduce.h"
#include "moesaic/report/run_course_report.h"
#include "report/memory_run.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kPaper = R"({"test_accuracy": 75, "initial": [2, 2, 2, 2],
    "final": [[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]})";

/// Small mixtures that take a second.
std::string course_text(const std::string& shows, const std::string& rows) {
  return R"({
    "name": "small", "kind": "run-course", "description": "a test", "every": 2, "shows": ")" +
         shows + R"(",
    "train": {
      "name": "run", "seed": 5, "evaluate_batch_size": 16000,
      "model": {"name": "cluster-moe", "experts": 4, "filters": 4, "router": {}},
      "phases": [{"name": "train", "data": "clusters-setting3", "batch_size": 400, "steps": 5,
                  "loss": "softmax_twice", "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0},
                  "optimizers": [{"parameters": ["^moe.experts"],
                                  "optimizer": {"name": "normalized_sgd", "lr": 0.001, "momentum": 0}}]}]
    },
    "rows": [)" +
         rows + "]}";
}

std::string cubic_and_linear() {
  return std::string(R"({"name": "cubic", "paper": )") + kPaper +
         R"(}, {"name": "it's_linear", "set": {"model.activation": "identity"}})";
}

RunCourseConfig parsed_course(const std::string& text) {
  return parse<RunCourseConfig>(Document::from_text(text, "course.json").root());
}

class RunCourseTest : public ::testing::Test {
 protected:
  ReproduceOptions options() const {
    ReproduceOptions options;
    options.out = folder_ / "out";
    options.progress = false;
    return options;
  }
  std::vector<RunCourse> run(const RunCourseConfig& config) const {
    std::vector<RunCourse> courses;
    EXPECT_TRUE(run_run_course(config, options(), courses));
    return courses;
  }
  std::string refusal(const std::string& shows, const std::string& rows) const {
    const std::string error = test::usage_of([&] { run(parsed_course(course_text(shows, rows))); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out")) << error;
    return error;
  }
  test::TempDir folder_;
};

/// -sum_m n_m / n sum_k p_km ln p_km
double entropy_by_loops(const std::vector<std::vector<int64_t>>& counts) {
  double n = 0.0, sum = 0.0;
  for (const auto& row : counts) {
    for (const int64_t count : row) n += static_cast<double>(count);
  }
  for (size_t m = 0; m < counts[0].size(); ++m) {
    double n_m = 0.0;
    for (const auto& row : counts) n_m += static_cast<double>(row[m]);
    for (const auto& row : counts) {
      const auto count = static_cast<double>(row[m]);
      if (count > 0.0) sum -= count / n * std::log(count / n_m);
    }
  }
  return sum;
}

double inner_by_loops(const at::Tensor& a, const at::Tensor& b) {
  double sum = 0.0;
  for (int64_t i = 0; i < a.size(0); ++i) sum += a[i].item<double>() * b[i].item<double>();
  return sum;
}

TEST_F(RunCourseTest, LooksAtTheDispatchAndAtWhatWeightsHaveInCommonWithTheData) {
  const RunCourseConfig config = parsed_course(course_text("products", R"({"name": "cubic"})"));
  const std::vector<RunCourse> courses = run(config);
  ASSERT_EQ(courses.size(), 1U);
  const RunCourse& course = courses[0];
  EXPECT_EQ(course.steps, 5);
  std::vector<int64_t> steps;
  for (const CoursePoint& point : course.points) {
    steps.push_back(point.step);
    int64_t examples = 0;
    for (const auto& row : point.dispatch) {
      for (const int64_t count : row) examples += count;
    }
    EXPECT_EQ(examples, 16000);
    EXPECT_NEAR(point.entropy, entropy_by_loops(point.dispatch), 1e-5);
  }
  EXPECT_THAT(steps, ElementsAre(0, 2, 4, 5));
  // The router starts at zero, so that the noise alone shares the clusters out.
  EXPECT_GT(course.points.front().entropy, 1.38);
  EXPECT_EQ(course.points.front().router_signal,
            (std::vector<std::vector<double>>(4, {0, 0, 0, 0})));

  Datasets datasets;
  const MemoryRun again = plan_memory_run(changed_run(config.train, {}, 0), datasets);
  const auto trained = train_in_memory(again, 0, [](Model&, int64_t) { return true; });
  const auto& model = dynamic_cast<const ClusterMoE&>(*trained->model);
  const ClusterSignals signals = cluster_signals(*load_dataset_spec("clusters-setting3").clusters);
  const CoursePoint& last = course.points.back();
  for (int64_t e = 0; e < 4; ++e) {
    for (int64_t k = 0; k < 4; ++k) {
      double signal = 0.0, centre = 0.0;
      for (int64_t j = 0; j < 4; ++j) {
        const at::Tensor w = model.experts->w[e].select(1, j);
        signal = std::max(signal, std::abs(inner_by_loops(w, signals.v_Kd[k])));
        centre = std::max(centre, std::abs(inner_by_loops(w, signals.c_Kd[k])));
      }
      const auto m = static_cast<size_t>(e), c = static_cast<size_t>(k);
      EXPECT_NEAR(last.expert_signal[m][c], signal, 1e-6);
      EXPECT_NEAR(last.expert_centre[m][c], centre, 1e-6);
      const at::Tensor theta = model.moe->router->weight[e];
      EXPECT_NEAR(last.router_signal[m][c], inner_by_loops(theta, signals.v_Kd[k]), 1e-6);
      EXPECT_NEAR(last.router_centre[m][c], inner_by_loops(theta, signals.c_Kd[k]), 1e-6);
    }
  }
  EXPECT_NE(last.router_centre, course.points.front().router_centre);
}

TEST_F(RunCourseTest, FinishedRunsAreKeptAndDamagedOnesMadeAgain) {
  const RunCourseConfig config = parsed_course(course_text("entropy", cubic_and_linear()));
  const std::vector<RunCourse> first = run(config);
  auto log = nlohmann::ordered_json::parse(read_text(folder_ / "out/runs.json"));
  log["cubic#0"]["points"][1]["dispatch"][0].erase(0);
  log["it's_linear#0"]["test_accuracy"] = 12.5;
  write_atomic(folder_ / "out/runs.json", log.dump());
  ::testing::internal::CaptureStderr();
  const std::vector<RunCourse> again = run(config);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("runs.json: damaged: 'cubic#0': "),
                    HasSubstr("the lists of dispatch are of different lengths")));
  EXPECT_EQ(to_json(again[0]), to_json(first[0]));
  EXPECT_EQ(again[1].test_accuracy, 12.5);
  EXPECT_THAT(
      test::usage_of([&] { run(parsed_course(course_text("entropy", R"({"name": "cubic"})"))); }),
      HasSubstr("other settings"));
}

TEST_F(RunCourseTest, RefusesWhatIsNoMixtureOfClustersBeforeAnythingRuns) {
  EXPECT_THAT(refusal("entropy", R"({"name": "a", "set": {"model.router": null, "model.experts": 1,
                                  "phases.0.optimizers": []}})"),
              HasSubstr("give it a router"));
  EXPECT_THAT(refusal("entropy", R"({"name": "a", "set": {"phases.0.data": "no-such-data"}})"),
              HasSubstr("no-such-data"));
  EXPECT_THAT(refusal("entropy", R"({"name": "a", "set": {"model.activation": "cubik"}})"),
              HasSubstr("cubic"));
  EXPECT_THAT(refusal("products", cubic_and_linear()),
              HasSubstr("products are those of one run, found 2"));
  EXPECT_THAT(refusal("entropy", R"({"name": "a"}, {"name": "a"})"), HasSubstr("two rows"));
  EXPECT_THAT(refusal("dispatches", R"({"name": "a"})"), HasSubstr("did you mean 'dispatch'?"));
  EXPECT_THAT(refusal("dispatch", R"({"name": "a", "paper": {"test_accuracy": 1, "initial": [1, 2],
                                     "final": [[1, 2], [3]]}})"),
              HasSubstr("must have a number for each of the 2 experts"));
}

/// Two runs of three experts and two clusters, made up.
std::vector<RunCourse> made_up() {
  RunCourse course{.test_accuracy = 90.0, .steps = 7};
  for (const int64_t step : {0, 7}) {
    const double d = step;
    course.points.push_back({.step = step,
                             .entropy = 0.5,
                             .dispatch = {{1, 2, 3 + step}, {4, 5, 6}},
                             .expert_signal = {{1, 2}, {3, 4}, {5, d}},
                             .expert_centre = {{0, 0}, {0, 0.5}, {0, 0}},
                             .router_signal = {{0, 0}, {0, 0}, {-0.25, 0}},
                             .router_centre = {{0, 0}, {0, 0}, {0, 0.125}}});
  }
  return {course, course};
}

TEST(RunCourseReport, RowsStandBesideThePapersDispatch) {
  const RunCourseConfig config = parsed_course(course_text("dispatch", cubic_and_linear()));
  const auto rows = run_course_rows(config, made_up());
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0].metric, "test_accuracy");
  EXPECT_EQ(rows[0].measured, 90.0);
  EXPECT_EQ(*rows[0].paper, 75.0);
  EXPECT_EQ(rows[1].metric, "entropy");
  // Two of four pairs of examples are in experts that two clusters share.
  EXPECT_NEAR(*rows[1].paper, 0.5 * std::log(2.0), 1e-6);
  EXPECT_EQ(rows[2].measured, 7);
  EXPECT_FALSE(rows[3].paper || rows[4].paper);
}

TEST(RunCourseReport, ProductsHaveTheLargestOfEachKind) {
  const RunCourseConfig config = parsed_course(course_text("products", R"({"name": "a"})"));
  Results results;
  results.rows = run_course_rows(config, {made_up()[0]});
  EXPECT_EQ(results.find("a", "largest_expert_signal")->measured, 7.0);
  EXPECT_EQ(results.find("a", "largest_expert_centre")->measured, 0.5);
  EXPECT_EQ(results.find("a", "largest_router_signal")->measured, 0.25);
  EXPECT_EQ(results.find("a", "largest_router_centre")->measured, 0.125);
}

TEST(RunCourseReport, TablesShowTheDispatchBesideThePapers) {
  const RunCourseConfig config = parsed_course(course_text("dispatch", cubic_and_linear()));
  Experiment experiment{.name = "small", .kind = "run-course", .description = "A test."};
  Results results{.experiment = "small", .scale = "paper"};
  results.rows = run_course_rows(config, made_up());
  const std::string text = run_course_markdown(experiment, config, made_up(), results);
  EXPECT_THAT(text, HasSubstr("cubic, 7 updates, test accuracy 90.00 %:\n\n| expert"));
  EXPECT_THAT(text,
              HasSubstr("| initial dispatch | 5 | 7 |  9 |\n| final dispatch   | 5 | 7 | 16 |\n"
                        "| cluster 1        | 1 | 2 | 10 |\n"));
  EXPECT_THAT(text, HasSubstr("The paper's, test accuracy 75.00 %:"));
  EXPECT_THAT(text, HasSubstr("| cluster 3        | 0 | 0 | 1 | 1 |"));
  EXPECT_THAT(run_course_summary(experiment, config, made_up(), results, "out"),
              AllOf(HasSubstr("cluster 1"), HasSubstr("out/report.md")));
  experiment.scale = Scale::quick;
  EXPECT_THAT(run_course_markdown(experiment, config, made_up(), results),
              ::testing::Not(HasSubstr("The paper's, test")));
}

TEST(RunCourseReport, FiguresHaveTheirData) {
  const RunCourseConfig dispatch = parsed_course(course_text("dispatch", cubic_and_linear()));
  EXPECT_THAT(run_course_figure(dispatch, made_up()).data,
              StartsWith("# expert\texamples of each cluster\n1\t1\t4\n2\t2\t5\n3\t10\t6\n\n\n#"));
  const RunCourseConfig entropy = parsed_course(course_text("entropy", cubic_and_linear()));
  EXPECT_THAT(run_course_figure(entropy, made_up()).data,
              StartsWith("# updates\tentropy\n0\t0.50000\n7\t0.50000\n\n\n#"));
  const RunCourseConfig products = parsed_course(course_text("products", R"({"name": "a"})"));
  const std::string data = run_course_figure(products, {made_up()[0]}).data;
  EXPECT_THAT(data,
              HasSubstr("\n7\t1.00000\t2.00000\t3.00000\t4.00000\t5.00000\t7.00000\t0.00000"));
  EXPECT_THAT(data, ::testing::EndsWith("\t0.00000\t0.12500\n"));
}

TEST(RunCourseReport, FiguresAreDrawnWithoutAWord) {
  if (find_program("gnuplot").empty()) GTEST_SKIP() << "needs gnuplot";
  for (const std::string shows : {"entropy", "dispatch", "products"}) {
    const test::TempDir folder;
    const std::string rows = shows == "products" ? R"({"name": "it's"})" : cubic_and_linear();
    const RunCourseConfig config = parsed_course(course_text(shows, rows));
    std::vector<RunCourse> courses = made_up();
    courses.resize(config.rows.size());
    ::testing::internal::CaptureStderr();
    draw_figure(folder.path(), run_course_figure(config, courses));
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << shows;
    EXPECT_THAT(read_text(folder / "figure.png"), StartsWith("\x89PNG"));
    EXPECT_THAT(read_text(folder / "figure.svg"),
                HasSubstr(shows == "products" ? "filters" : "it's linear"));
  }
}

TEST(RunCourseExperiment, Figures4And5TrainAsTheRecipes) {
  for (const auto& [experiment, recipe] :
       {std::pair{"clusters/figure4", "setting1-cubic"}, {"clusters/figure5", "setting1-linear"}}) {
    const auto config = parse<RunCourseConfig>(load_experiment(experiment, Scale::paper).config);
    EXPECT_EQ(config.shows, "products");
    const RunConfig run = changed_run(config.train, config.rows.at(0).set, config.max_steps);
    const RunConfig wanted = parse<RunConfig>(
        Document::from_file(resource(std::string("models/clusters/recipes/") + recipe + ".json"))
            .root());
    EXPECT_EQ(run.model.to_json(), wanted.model.to_json());
    EXPECT_EQ(run.seed, wanted.seed);
    ASSERT_EQ(run.phases.size(), wanted.phases.size());
    EXPECT_EQ(to_json(run.phases[0]), to_json(wanted.phases[0]));
  }
}

TEST(RunCourseExperiment, Figure3AndTable4AreOfGeneratedData) {
  for (const std::string name : {"clusters/figure3", "clusters/table4"}) {
    const auto config = parse<RunCourseConfig>(load_experiment(name, Scale::paper).config);
    EXPECT_EQ(config.rows.size(), name == "clusters/table4" ? 3U : 4U);
    for (const RunCourseRow& row : config.rows) {
      const RunConfig run = changed_run(config.train, row.set, config.max_steps);
      EXPECT_TRUE(load_dataset_spec(run.phases.back().data).generated());
      EXPECT_EQ(row.paper.has_value(), name == "clusters/table4");
    }
  }
}

}  // namespace
}  // namespace moesaic
