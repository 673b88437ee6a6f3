// SPDX-License-Identifier: Apache-2.0
// The experiment "run-table": many small runs that differ in a few settings, each with several
// seeds, and what they come to on average beside what a paper prints.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/report/prune_sweep.h"
#include "moesaic/report/results.h"

namespace moesaic {

struct RunTableRow {
  std::string name;
  Value set;
  std::map<std::string, std::vector<double>> paper;
  std::optional<int64_t> runs;
};
template <class Fields>
void describe(Fields& f, RunTableRow& c) {
  f("name", c.name, "of the row", required, not_empty);
  f("set", c.set, "settings of the run, by dotted name");
  f("paper", c.paper,
    "what the paper prints for a metric: the value and, where it has one, its spread");
  f("runs", c.runs, "in place of the table's", at_least(1));
}
ConfigProblem config_problem(const RunTableRow& config);

struct RunTableConfig {
  std::string name, kind, description;
  int64_t runs = 10;
  int64_t max_steps = 0;
  Value train;
  std::vector<RunTableRow> rows;
  Value quick;
};
template <class Fields>
void describe(Fields& f, RunTableConfig& c) {
  f("name", c.name, "of the experiment", required, not_empty);
  f("kind", c.kind, "what is done", required, one_of({"run-table"}));
  f("description", c.description, "one line for lists and the report", required, not_empty);
  f("runs", c.runs, "of each row, with seeds that follow each other", between(1, 10000));
  f("max_steps", c.max_steps, "no phase of a run makes more updates; 0: as they are configured",
    at_least(0));
  f("train", c.train, "the run that rows change", required);
  f("rows", c.rows, "what is measured", required, not_empty);
  f("quick", c.quick, "settings of --scale quick, by dotted name");
}

/// test_accuracy in %, steps, and where there is a router entropy: the dispatch entropy of the
/// training data by the groups that it has, else by its classes.
std::vector<std::string> run_table_metrics();

struct RunTableOutcome {
  struct Row {
    std::string name;
    std::vector<std::map<std::string, double>> runs;  ///< metrics of each, by seed
  };
  std::vector<Row> rows;
};

/// Makes all runs, as many side by side as there are threads, each on one thread; a run is a
/// function of its settings and seed. `out` gets config.json and runs.json, where every finished
/// run is kept, so that the same call goes on where a former one stopped. Returns false, with
/// `outcome` incomplete, where a signal stopped it. Throws Error: usage for settings that do not
/// fit each other, before anything is trained, and where `out` was made with others.
bool run_run_table(const RunTableConfig& config, const ReproduceOptions& options,
                   RunTableOutcome& outcome);

/// Means and standard deviations (of the runs themselves, as papers print them), a row for each
/// metric.
std::vector<ResultRow> run_table_rows(const RunTableConfig& config, const RunTableOutcome& outcome);

}  // namespace moesaic
