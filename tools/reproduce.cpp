// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"
#include "moesaic/base/signal.h"
#include "moesaic/report/experiment.h"
#include "runtime.h"

namespace moesaic::tools {
namespace {

struct ReproduceArguments {
  std::string experiment, scale = "paper", out, device = "cpu";
  std::vector<std::string> overrides;
  bool json = false, dry_run = false;
};

int run_reproduce(const ReproduceArguments& arguments) {
  const Scale scale = arguments.scale == "quick" ? Scale::quick : Scale::paper;
  const Experiment experiment = load_experiment(arguments.experiment, scale, arguments.overrides);
  if (arguments.dry_run) {
    if (follows_a_leader()) return 0;  // It prints the plan.
    std::cout << plan_experiment(experiment);
    return 0;
  }
  ReproduceOptions options;
  options.out = arguments.out.empty() ? default_output(experiment) : fs::path(arguments.out);
  options.device = arguments.device;
  options.processes = init_process_mesh({}, arguments.device);
  const StopSignal stop;  // A signal before ends the process, which may wait for others.
  options.stop = &stop;
  const bool is_rank_zero = !options.processes || options.processes->is_rank_zero();
  options.show_progress = is_rank_zero;
  Reproduction done;
  run_distributed("reproduce", options.processes, [&] { done = reproduce(experiment, options); });
  if (done.signal != 0) {
    log_warning("stopped; the same command continues from here");
    return 128 + done.signal;
  }
  if (!is_rank_zero) return 0;
  const std::string text =
      arguments.json ? to_json(done.results).dump(2) + "\n" : "\n" + done.summary;
  std::cout << text;
  return 0;
}

}  // namespace

void add_reproduce(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<ReproduceArguments>();
  CLI::App* verb = add_verb(app, "reproduce", "Reproduce the table and figure of an experiment.",
                            "reproduce clusters/table1 --scale quick --out checkpoints/table1");
  verb->add_option("experiment", arguments->experiment,
                   "name of the experiment (moesaic list experiments), or a JSON file")
      ->required()
      ->type_name("EXPERIMENT");
  verb->add_option("overrides", arguments->overrides, "settings to change, e.g. train.seed=2")
      ->type_name("KEY=VALUE");
  add_text(*verb, "--out", arguments->out, "DIR",
           "folder of runs and results (checkpoints/<name>)");
  add_value(*verb, "--scale", arguments->scale, "SCALE", one_of_words({"paper", "quick"}),
            "scale of the experiment: paper, or quick to try it out")
      ->capture_default_str();
  add_device(*verb, arguments->device);
  verb->add_flag("--json", arguments->json, "print one JSON document: results.json");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "check everything and print the plan without training");
  verb->callback([arguments, &exit_code] { exit_code = run_reproduce(*arguments); });
}

}  // namespace moesaic::tools
