// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "moesaic/config/document.h"
#include "report/report_fixture.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using report_test::experiment;
using report_test::made_sweep;
using report_test::made_with_choice;
using report_test::MadeSweep;

std::string markdown_of(const MadeSweep& made, const Results& results,
                        const Experiment& of = experiment()) {
  return sweep_report(of, made.plan, results, "out").markdown;
}

std::string summary_of(const MadeSweep& made, const Results& results, const Results& kept = {}) {
  return sweep_report(experiment(), made.plan, results, "out", kept).summary;
}

TEST(SweepSavings, AreOfTheNetworkWithTheMostParameters) {
  MadeSweep made = made_sweep();
  for (int i = 0; i < 2; ++i) {
    const Results results = made.results();
    const auto saved = [&](const char* row) {
      std::vector<double> numbers;
      for (const char* metric :
           {"parameters_pruned", "flops_saved", "capacity_flops_saved", "time_saved"}) {
        numbers.push_back(results.find(row, metric)->measured);
      }
      return numbers;
    };
    EXPECT_EQ(saved("keep8/random"), (std::vector<double>{0, 0, 0, 0}));
    // 15 of 20 MFLOPs, and 20 of 25 by capacity; time is the inverse of speed, 4000 / 5000.
    EXPECT_EQ(saved("keep4/router-norm-change"), (std::vector<double>{40, 25, 20, 20}));
    EXPECT_EQ(saved("keep4/random"), (std::vector<double>{40, 40, 32, 37.5}));
    std::reverse(made.plan.sizes.begin(), made.plan.sizes.end());
  }
  made = made_with_choice();
  made.plan.sizes.erase(made.plan.sizes.begin());
  EXPECT_DOUBLE_EQ(made.results().find("keep4/random", "parameters_pruned")->measured, 10.0);
  EXPECT_THAT(summary_of(made, made.results()), HasSubstr("the network with first_whole (8, 2)\n"));
}

TEST(SweepSummary, OfSeveralRunsHasTheirSpread) {
  MadeSweep made = report_test::with_second_run(made_sweep(), 1.0, 2.0, 0.0);
  made.plan.exported = {};
  const Results results = made.results();
  const std::string text = summary_of(made, results);
  EXPECT_THAT(text, HasSubstr("pruned -> recovered, mean (standard deviation) of 2 runs\n"));
  EXPECT_THAT(text, HasSubstr("94.25 (1.41) -> 96.25 (0.00)"));
  EXPECT_THAT(text, Not(HasSubstr("TorchScript")));
  EXPECT_NEAR(results.find("keep4/random", "accuracy")->std.value(), std::sqrt(2.0), 1e-12);
  EXPECT_EQ(results.find("keep4/random", "accuracy")->num_runs, 2);
  EXPECT_EQ(results.find("keep4/random", "parameters")->num_runs, 1);
  EXPECT_EQ(results.find("export", "forward_time_ratio"), nullptr);
}

TEST(SweepSummary, HasAColumnForTheProgramThatWasEvaluated) {
  MadeSweep made = made_sweep();
  RunRecord run;
  run.final.numbers = {{"forward_time_ratio", 1.05}, {"accuracy", 96.25}};
  made.rows.push_back({kSweepProgramRow,
                       {{"forward_time_ratio", "ratio"}, {"accuracy", "test accuracy, %"}},
                       {std::move(run)}});
  const std::string text = summary_of(made, made.results());
  EXPECT_THAT(text, HasSubstr("        random  .pt2, run 1\n"));
  EXPECT_THAT(text, HasSubstr("96.50 -> 96.75            -\n"));
  EXPECT_THAT(text, HasSubstr("71.00 -> 95.00        96.25\n"));
  EXPECT_THAT(text, HasSubstr("1.12 x our forward time; model.pt2, 1.05 x\n"));
  made.plan.exported = {};
  EXPECT_THAT(summary_of(made, made.results()), Not(HasSubstr(".pt2")));
}

TEST(SweepMarkdown, ComparesCriteriaInPairsOfRuns) {
  MadeSweep made = report_test::with_second_run(made_sweep(), 1.0, 2.0, 0.0);
  made.rows.back().runs[1].final.numbers["accuracy"] = 71.25;
  const std::string text = markdown_of(made, made.results());
  // 93.25 - 71 and 95.25 - 71.25: mean 23.125, standard error 0.875.
  EXPECT_THAT(text,
              HasSubstr("| keep4/router-norm-change | keep4/random | accuracy           | 2 |      "
                        "23.12 |      0.875 | 12.01 to 34.24 |\n"));
  EXPECT_THAT(text,
              HasSubstr("| accuracy_recovered | 2 |       1.25 |          0 |   1.25 to 1.25 |\n"));
  EXPECT_THAT(text, Not(HasSubstr("| keep8/random | accuracy  ")));
}

TEST(SweepSummary, OfOneRunHasWhatWasKeptOfMoreBesideIt) {
  const Value kept = Document::from_text(R"({"rows": [
    {"name": "keep4/random", "metric": "accuracy", "measured": 70.5, "std": 2.25, "runs": 5},
    {"name": "keep4/random", "metric": "accuracy_recovered", "measured": 95, "std": null, "runs": 5}]})",
                                         "kept.json")
                         .root();
  const MadeSweep one = made_sweep();
  const Results results = one.results();
  const std::string text = summary_of(one, results, {.rows = measured_rows(kept)});
  EXPECT_THAT(text, HasSubstr("Kept from 5 runs, mean (standard deviation)\n"));
  EXPECT_THAT(text, HasSubstr("70.50 (2.52) -> 95.00"));
  EXPECT_THAT(summary_of(one, results), Not(HasSubstr("Kept")));
}

TEST(SweepRows, ChoicesByLayerHaveTheirNamesAndFractionsOfTheWhole) {
  const MadeSweep made = made_with_choice();
  const Results results = made.results();
  ASSERT_NE(results.find("first_whole/random", "accuracy"), nullptr);
  EXPECT_EQ(results.find("first_whole/random", "accuracy")->measured, 94.5);
  EXPECT_EQ(results.find("first_whole/random", "flops_saved")->measured, 20.0);
  const std::string text = summary_of(made, results);
  EXPECT_THAT(text, HasSubstr("\nfirst_whole (8, 2)      94.50 -> 96.50  94.50 -> 96.50\n"));
  EXPECT_THAT(text, HasSubstr("\nfirst_whole (8, 2)   1,000,000  4.00 MB"));
  const std::string report = markdown_of(made, results);
  EXPECT_THAT(report,
              HasSubstr("ranked them. Behind the name of a choice by layer stand the experts"));
}

TEST(SweepRows, NameEveryNumber) {
  const Results results = made_sweep().results();
  EXPECT_EQ(results.rows.size(), 2u + 4u * 13u + 1u);
  std::string text;
  for (const ResultRow& row : results.rows) {
    if (row.name == "keep4/random") text += fmt::format("{} {}\n", row.metric, row.measured);
    EXPECT_EQ(row.num_runs, 1);
    EXPECT_FALSE(row.std || row.paper.value || row.paper.std) << row.name;
  }
  EXPECT_EQ(text,
            "accuracy 71\naccuracy_lost 25.5\naccuracy_recovered 95\naccuracy_lost_recovered 1.5\n"
            "parameters 900000\nflops 12000000\ncapacity_flops 17000000\nimages_per_second 6400\n"
            "bytes 3600000\n"
            "parameters_pruned 40\nflops_saved 40\ncapacity_flops_saved 32\ntime_saved 37.5\n");
}

TEST(SweepMarkdown, IsTheWholeReport) {
  const std::string text = markdown_of(made_sweep(), made_sweep().results());
  const std::string head = R"(# demo

What pruning costs.

Scale: paper. It took 301 seconds.

| phase    | data    | test images | test accuracy, % |
|----------|---------|------------:|-----------------:|
| pretrain | fashion |      10,000 |            88.12 |
| finetune | shoes   |       3,000 |            96.50 |

## Accuracy on shoes

Test accuracy in %, pruned -> recovered, by experts kept in each layer and by what ranked them.

| experts | router-norm-change |         random |
|---------|-------------------:|---------------:|
| 8 of 8  |     96.50 -> 96.75 | 96.50 -> 96.75 |
| 4 of 8  |     93.25 -> 96.25 | 71.00 -> 95.00 |

![Accuracy and cost over the fraction of pruned parameters](figure.svg)

## Cost, experts ranked by router-norm-change

The last three columns are fractions of the network with 8 experts. FLOPs count the matrix multiplications of the rows that the test split's routing really computed, and by capacity those of full capacity buffers of the experts that are left. Speed is the median over forward passes in which all networks took turns.

| experts | parameters |    file | MFLOPs an image | images/s | FLOPs, % | by capacity, % | forward time, % |
|---------|-----------:|--------:|----------------:|---------:|---------:|---------------:|----------------:|
| 8 of 8  |  1,500,000 | 6.00 MB |           20.00 |    4,000 |    100.0 |          100.0 |           100.0 |
| 4 of 8  |    900,000 | 3.60 MB |           15.00 |    5,000 |     75.0 |           80.0 |            80.0 |

Exported: `model.ts.pt` (4 of 8 experts by router-norm-change, recovered; TorchScript, 1.12 x our forward time).

## Every value

No paper has this task.

| row                      | metric                  | n |       mean | std |
|--------------------------|-------------------------|--:|-----------:|----:|
| pretrain                 | test_accuracy           | 1 |      88.12 |   - |
)";
  EXPECT_EQ(text.substr(0, head.size()), head);
  const std::string tail =
      R"(| keep4/random             | time_saved              | 1 |      37.50 |   - |
| export                   | forward_time_ratio      | 1 |       1.12 |   - |

Made by `moesaic reproduce demo --scale paper`; `gnuplot figure.gp` draws the figure again.
)";
  ASSERT_GT(text.size(), tail.size());
  EXPECT_EQ(text.substr(text.size() - tail.size()), tail);
}

TEST(SweepMarkdown, QuickAndOverridesAreOwnedUpTo) {
  Experiment quick = experiment(Scale::quick);
  quick.overrides = {"train.seed=2"};
  const std::string text = markdown_of(made_sweep(), made_sweep().results(Scale::quick), quick);
  EXPECT_THAT(text, HasSubstr("Scale: **quick**. Sizes are smaller than the paper's"));
  EXPECT_THAT(text, Not(HasSubstr("Scale: paper")));
  EXPECT_THAT(text, HasSubstr("`moesaic reproduce demo train.seed=2 --scale quick`"));
}

TEST(SweepMarkdown, APapersValueIsShownAndNotDenied) {
  Results results = made_sweep().results();
  results.rows[0].paper.value = 89.5;
  const std::string text = markdown_of(made_sweep(), results);
  EXPECT_THAT(text, Not(HasSubstr("No paper has this task")));
  EXPECT_THAT(
      text,
      HasSubstr(
          "| pretrain                 | test_accuracy           | 1 |      88.12 |   - | 89.50 | "
          "        - |       - |"));
}

TEST(SweepSummary, IsAlignedAndNamesTheFiles) {
  EXPECT_EQ(summary_of(made_sweep(), made_sweep().results()),
            R"(demo, scale paper, 301 s

phase     data     test images  test accuracy, %
pretrain  fashion       10,000             88.12
finetune  shoes          3,000             96.50

Test accuracy on shoes in %, pruned -> recovered

experts  router-norm-change          random
8 of 8       96.50 -> 96.75  96.50 -> 96.75
4 of 8       93.25 -> 96.25  71.00 -> 95.00

Cost by router-norm-change; fractions are of the network with 8 experts

experts  parameters     file  MFLOPs an image  images/s  FLOPs, %  by capacity, %  forward time, %
8 of 8    1,500,000  6.00 MB            20.00     4,000     100.0           100.0            100.0
4 of 8      900,000  3.60 MB            15.00     5,000      75.0            80.0             80.0

figure   out/figure.svg, figure.png
model    out/model.ts.pt
         4 of 8 experts by router-norm-change, recovered; TorchScript, 1.12 x our forward time
report   out/report.md
results  out/results.json
)");
}

TEST(SweepSummary, ManyCriteriaFillSeveralTablesOfAHundredColumns) {
  MadeSweep made = made_sweep();
  made.plan.criteria.clear();
  made.plan.exported = {};
  for (const char letter : {'a', 'b', 'c', 'd', 'e'}) {
    const std::string criterion(28, letter);
    made.plan.criteria.push_back(criterion);
    for (const char* size : {"keep8/", "keep4/"}) {
      made.add_network(size + criterion, 90.0, 91.0, 1000, 1e6, 100.0);
    }
  }
  made.plan.plotted = made.plan.criteria;
  const std::string text = summary_of(made, made.results());
  std::istringstream lines(text);
  int64_t tables = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("aaaa") != std::string::npos && line.starts_with("Cost")) continue;
    EXPECT_LE(line.size(), 100u) << line;
    tables += line.starts_with("experts  aaaa") || line.starts_with("experts  dddd");
  }
  EXPECT_EQ(tables, 2);  // three criteria fit, then two
  EXPECT_THAT(text, HasSubstr("91.00\n\nexperts  dddd"));
}

}  // namespace
}  // namespace moesaic
