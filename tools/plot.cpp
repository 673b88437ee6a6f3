// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "moesaic/base/error.h"
#include "moesaic/report/figure.h"
#include "moesaic/train/expert_loads.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

struct PlotArguments {
  std::vector<std::string> runs;
  std::string out = "runs.png", experts;
};

void plot(const PlotArguments& arguments) {
  const fs::path out = arguments.out;
  const std::string stem = out.stem().string();
  const bool of_experts = !arguments.experts.empty();
  if (of_experts && arguments.runs.size() > 1) {
    fail_usage("plot: --experts shows one run, found {}; give one", arguments.runs.size());
  }
  check_new_figure(out, "--out");
  std::vector<RunMetrics> runs;
  for (const std::string& run : arguments.runs) runs.push_back({run, read_metrics(run)});
  const std::string& first = runs.front().lines;
  draw_figure_file(out, of_experts         ? expert_figure(first, arguments.experts, stem)
                        : runs.size() == 1 ? run_curve(first, stem)
                                           : run_comparison(runs, stem));
  log_written(out);
}

}  // namespace

void add_plot(CLI::App& app, int& /*exit_code*/) {
  const auto arguments = std::make_shared<PlotArguments>();
  CLI::App* verb = add_verb(app, "plot", "Plot the curves of runs, or the use of a run's experts.",
                            "plot checkpoints/first checkpoints/second --out both.png");
  add_text(*verb, "runs", arguments->runs, "RUN", "folders of runs")->required();
  add_text(*verb, "--out", arguments->out, "FILE",
           "figure to draw, which ends in .png or .svg; its gnuplot script and data are written "
           "beside it (runs.png)");
  verb->add_option("--experts", arguments->experts,
                   "numbers of each expert to draw over the steps of one run, a heat map for each "
                   "MoE layer (load)")
      ->check(one_of_words({kExpertMetrics.begin(), kExpertMetrics.end()}))
      ->expected(0, 1)
      ->default_str("load")
      ->option_text(fmt::format("[{}]", fmt::join(kExpertMetrics, "|")));
  verb->callback([arguments] { plot(*arguments); });
}

}  // namespace moesaic::tools
