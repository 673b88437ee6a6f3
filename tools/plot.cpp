// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"
#include "moesaic/report/figure.h"
#include "moesaic/train/expert_loads.h"

namespace moesaic::tools {
namespace {

struct PlotArguments {
  std::vector<std::string> runs;
  std::string out = "runs.png", metric = kExpertMetrics[0];
  bool experts = false;
};

void plot(const PlotArguments& arguments) {
  const fs::path out = arguments.out;
  const std::string stem = out.stem().string();
  if (arguments.experts && arguments.runs.size() > 1) {
    fail_usage("plot: --experts shows one run, found {}; give one", arguments.runs.size());
  }
  check_new_figure(out, "--out");
  std::vector<RunMetrics> runs;
  for (const std::string& run : arguments.runs) runs.push_back({run, read_metrics(run)});
  const std::string& first = runs.front().lines;
  draw_figure_file(out, arguments.experts  ? expert_figure(first, arguments.metric, stem)
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
  CLI::Option* experts = verb->add_flag(
      "--experts", arguments->experts,
      "draw a number of each expert over the steps of one run, a heat map for each MoE layer");
  add_text(*verb, "--metric", arguments->metric, fmt::format("{}", fmt::join(kExpertMetrics, "|")),
           "number that --experts draws (load)")
      ->check(one_of_words({kExpertMetrics.begin(), kExpertMetrics.end()}))
      ->needs(experts);
  verb->callback([arguments] { plot(*arguments); });
}

}  // namespace moesaic::tools
