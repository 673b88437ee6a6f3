// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "moesaic/parallel/lost_process.h"
#include "moesaic/parallel/processes.h"
#include "moesaic/report/run_curve.h"
#include "moesaic/train/dry_run.h"
#include "moesaic/train/run_folder.h"
#include "moesaic/train/trainer.h"
#include "recipes.h"
#include "train_help.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  std::string device = "cpu";
  bool resume = false;
  bool dry_run = false;
  int64_t expert_parallel = 0;
};

RunConfig read_config(const TrainArguments& arguments) {
  if (arguments.config.empty()) {  // The library would keep it back from the words of --help.
    fail_usage("train: config is required (see moesaic train --help)");
  }
  if (arguments.config.find('=') != std::string::npos && !path_exists(arguments.config)) {
    fail_usage("train: the recipe comes first, then settings like '{}'", arguments.config);
  }
  check_recipe(arguments.config);
  Document document = Document::from_file(arguments.config);
  for (const std::string& assignment : arguments.overrides) document.set(assignment);
  if (arguments.expert_parallel > 0) {
    document.set(fmt::format("parallel.experts={}", arguments.expert_parallel));
  }
  return parse<RunConfig>(document.root());
}

/// Draws the curve; a failure does not fail the run.
void draw_curve(const std::string& out) {
  try {
    draw_run_curve(out);
    log_info("its curve: {}/figure.png", out);
  } catch (const Error& error) {
    log_warning("no curve was drawn: {}", error.what());
  }
}

std::string resume_command(const TrainArguments& arguments, const std::string& out) {
  std::string words = called_as() + " train " + shell_quoted(arguments.config);
  for (const std::string& setting : arguments.overrides) words += " " + shell_quoted(setting);
  if (arguments.device != "cpu") words += " --device " + shell_quoted(arguments.device);
  return fmt::format("{} --out {} --resume", words, shell_quoted(out));
}

/// Runs, and where that fails tells the other processes why, or says which of them was lost.
TrainResult run_together(const RunConfig& config, const TrainerOptions& options) {
  const auto& processes = options.processes;
  if (!processes) return Trainer(config, options).run();
  const std::string name =
      fmt::format("process {} of {}", processes->rank(), processes->size());
  try {
    return Trainer(config, options).run();
  } catch (const LostProcess& error) {
    const std::string loss = processes->explain_loss(error.what());
    if (loss.empty()) std::_Exit(1);  // Another process says it.
    log_error("{}", loss);
  } catch (const Error& error) {
    processes->tell_failure(error.what());
    log_error("{}: {}", name, error.what());
    std::_Exit(error.exit_code());
  } catch (const std::exception& error) {
    processes->tell_failure(error.what());
    log_error("{}: {}", name, error.what());
  }
  // Threads of collectives that wait for lost processes would hold up an ordinary end.
  std::_Exit(1);
}

void report(const TrainResult& result, const TrainArguments& arguments, const std::string& out) {
  if (result.signal != 0) {
    log_info("stopped at step {}, saved; go on with: {}", result.steps,
             resume_command(arguments, out));
    return;
  }
  log_info("done: {}, {}", count_text(result.steps, "step"), result.checkpoint.string());
  draw_curve(out);
}

int train(const TrainArguments& arguments) {
  const StopSignal stop;
  const RunConfig config = read_config(arguments);
  const std::string out = arguments.out.empty() ? "checkpoints/" + config.name : arguments.out;
  TrainerOptions options;
  options.out = out;
  options.resume = arguments.resume;
  options.device = arguments.device;
  options.stop = &stop;
  if (arguments.dry_run) {
    if (!arguments.out.empty()) RunFolder::check(out, arguments.resume);
    std::fputs(dry_run(config).c_str(), stdout);
    return 0;
  }
  const Launch launch = launch_of(process_environment());
  if (!launch.alone()) options.processes = Processes::connect(launch, config.parallel);
  const TrainResult result = run_together(config, options);
  if (!options.processes || options.processes->leads()) report(result, arguments, out);
  return result.signal == 0 ? 0 : 128 + result.signal;
}
/// Prints help and ends the parsing of the command line.
void print_help(const CLI::App& verb, std::vector<std::string> words) {
  std::erase(words, "");  // What the option has without a value.
  const std::string text = words.empty() ? verb.get_parent()->help() + "\n" + common_settings_help()
                                         : settings_help(words);
  std::fputs(text.c_str(), stdout);
  throw CLI::Success();
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb = app.add_subcommand("train", "train a network through the phases of a run");
  verb->set_help_flag();
  verb->add_option_function<std::vector<std::string>>(
          "-h,--help", [verb](const auto& words) { print_help(*verb, words); },
          "this text, or help on settings: KEY.PATH, or model NAME")
      ->expected(0, -1)
      ->type_name("WHAT");
  verb->add_option("config", arguments->config,
                   "the run as JSON, e.g. models/vmoe/recipes/smoke.json")
      ->type_name("CONFIG");
  verb->add_option("overrides", arguments->overrides,
                   "settings to change, e.g. seed=2 phases.finetune.optimizer.lr=1e-4")
      ->type_name("KEY=VALUE");
  verb->add_option("--out", arguments->out, "the run's folder (checkpoints/<name>)")
      ->check(not_empty())
      ->type_name("DIR");
  verb->add_flag("--resume", arguments->resume, "go on from the folder's newest checkpoint");
  add_device(*verb, arguments->device);
  verb->add_option("--expert-parallel", arguments->expert_parallel,
                   "K, processes that share the experts (parallel.experts); torchrun, mpirun or srun "
                   "start the processes")
      ->check(CLI::PositiveNumber)
      ->type_name("K");
  verb->add_flag(
      "--dry-run", arguments->dry_run,
      "check everything, print the plan, train nothing; data and init that are not there are only "
      "reported where descriptions do without them");
  verb->callback([arguments, &exit_code] { exit_code = train(*arguments); });
}

}  // namespace moesaic::tools
