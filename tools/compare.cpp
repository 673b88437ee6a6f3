// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"
#include "moesaic/report/comparison.h"

namespace moesaic::tools {
namespace {

struct CompareArguments {
  CompareOptions options;
  std::string first, second;
  bool json = false;
};

void run_compare(CompareArguments& arguments) {
  arguments.options.files = {arguments.first};
  if (!arguments.second.empty()) arguments.options.files.push_back(arguments.second);
  const std::vector<RowComparison> comparisons = compare_results(arguments.options);
  std::cout << (arguments.json ? to_json(comparisons).dump(2) + "\n"
                               : comparison_table(comparisons).text());
}

}  // namespace

void add_compare(CLI::App& app, int& /*exit_code*/) {
  constexpr const char* kNotes =
      "Runs of the same seed are subtracted: rows of one file minus the first of --rows, or\n"
      "rows of the second file minus the same ones of the first. The output is mean, standard\n"
      "error and 95 % interval (Student's t) of the differences.";
  const auto arguments = std::make_shared<CompareArguments>();
  CLI::App* verb = add_verb(
      app, "compare", "Compare rows of an experiment's results in pairs of runs.",
      "compare checkpoints/quickstart/results.json --rows keep4/random,keep4/router-norm-change",
      kNotes);
  add_text(*verb, "file", arguments->first, "FILE", "results.json of an experiment")->required();
  add_text(*verb, "file2", arguments->second, "FILE",
           "results.json whose rows are compared with the first's");
  add_text(*verb, "--rows", arguments->options.rows, "ROW[,ROW...]",
           "names of the rows to compare, separated by commas; a name that contains a comma "
           "needs a --rows of its own")
      ->required()
      ->allow_extra_args(false);
  add_text(*verb, "--metric", arguments->options.metric, "NAME",
           "metric to compare (all that both rows have)");
  verb->add_flag("--json", arguments->json, "print one JSON document");
  verb->callback([arguments] { run_compare(*arguments); });
}

}  // namespace moesaic::tools
