// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "command_line.h"
#include "moesaic/base/file.h"
#include "moesaic/base/process.h"
#include "moesaic/data/source.h"
#include "moesaic/report/figure.h"
#include "moesaic/train/run_folder.h"
#include "moesaic/train/run_plan.h"
#include "moesaic/train/step_profiler.h"
#include "moesaic/train/trainer.h"
#include "runtime.h"
#include "train_help.h"

namespace moesaic::tools {
namespace {

constexpr int64_t kMaxProcesses = 1 << 20;

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  std::string device = "cpu";
  bool resume = false;
  bool dry_run = false;
  bool trust = false;
  std::string processes, gpu, profile;
  int64_t expert_parallel = 0;
};

using Names = std::vector<std::string>;

Names json_files(const fs::path& folder) {
  Names paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".json") paths.push_back(it->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Returns the path from the current folder where it is below that.
std::string shortened(const std::string& path) {
  const std::string near = fs::proximate(path).string();
  return near.starts_with("..") ? path : near;
}

[[noreturn]] void refuse_folder(const fs::path& folder) {
  const std::string name = shell_quoted(folder.string());
  if (fs::exists(folder / "MANIFEST.json")) {
    fail_usage("train: {}: a checkpoint, not a recipe; give a recipe with init={}", folder.string(),
               name);
  }
  if (fs::is_directory(folder / "checkpoints") && fs::exists(folder / "config.json")) {
    fail_usage("train: {}: a run, not a recipe; resume it by: {} train {} --out {} --resume",
               folder.string(), called_as(), shell_quoted((folder / "config.json").string()), name);
  }
  if (fs::is_directory(folder / "train")) {
    fail_usage("train: {}: a folder, not a recipe; give a recipe with phases.0.data={}",
               folder.string(), shell_quoted((folder / "").string()));
  }
  const Names recipes = json_files(folder);
  fail_usage("train: {}: a folder, not a recipe; {}", folder.string(),
             recipes.empty() ? "see moesaic list recipes" : did_you_mean("", recipes));
}

/// Throws Error (usage) unless `path` is a file: it says what a folder is good for, and which
/// recipe a name like "smoke" may mean.
void check_recipe(const fs::path& path) {
  if (fs::is_directory(path)) refuse_folder(path);
  if (path.empty() || path_exists(path)) return check_input_file(path);
  const std::vector<fs::path> known = model_files("recipes");
  Names stems, meant;
  for (const fs::path& recipe : known) stems.push_back(recipe.stem().string());
  std::string hint = nearest_sibling(path, PathForm::path, [](const fs::path& sibling) {
    return sibling.extension() == ".json" && fs::is_regular_file(sibling);
  });
  const std::string stem = path.stem().string();
  const auto near = hint.empty() ? nearest(stem, stems) : std::optional(stem);
  for (size_t i = 0; near && i < known.size(); ++i) {
    if (stems[i] == *near) meant.push_back(shortened(known[i].string()));
  }
  if (meant.size() == 1) hint = fmt::format("; did you mean '{}'?", meant.front());
  if (meant.size() > 1) hint = fmt::format("; choose one of {}", fmt::join(meant, ", "));
  if (hint.empty()) hint = "; see moesaic list recipes";
  fail_usage("train: {}: no such file{}", path.string(), hint);
}

/// Throws Error (usage) for an experiment in place of a recipe.
void check_is_no_experiment(const Value& root, const std::string& file) {
  if (!root.is_object() || root.find("phases") != nullptr || root.find("kind") == nullptr) return;
  fail_usage("train: {}: an experiment, not a recipe; run it by: {} reproduce {}", file,
             called_as(), shell_quoted(file));
}

RunConfig read_config(const TrainArguments& arguments) {
  if (arguments.config.empty()) {  // The library would keep it back from the words of --help.
    const fs::path stored = fs::path(arguments.out) / "config.json";
    if (arguments.resume && path_exists(stored)) {
      fail_usage("train: the recipe is missing; to resume, give {}", stored.string());
    }
    fail_usage("train: the recipe is missing; moesaic list recipes lists some");
  }
  if (arguments.config.find('=') != std::string::npos && !path_exists(arguments.config)) {
    fail_usage("train: the recipe comes first, then settings like '{}'", arguments.config);
  }
  check_recipe(arguments.config);
  Document document = Document::from_file(arguments.config);
  check_is_no_experiment(document.root(), arguments.config);
  for (const std::string& assignment : arguments.overrides) {
    const size_t equals = assignment.find('=');
    const std::string key = assignment.substr(0, equals);
    const std::string paths = settings_called(key, document);
    if (equals != std::string::npos && !paths.empty()) {
      fail_usage("argument '{}': unknown key '{}'; did you mean {}?", one_line(assignment),
                 one_line(key), paths);
    }
    document.set(assignment);
  }
  if (arguments.expert_parallel > 0) {
    document.set(fmt::format("parallel.expert_parallel_size={}", arguments.expert_parallel));
  }
  auto config = parse<RunConfig>(document.root());
  config.trust = arguments.trust;
  return config;
}

/// Draws the curve and writes the report; a failure does not fail the run.
void describe_run(const std::string& out) {
  try {
    draw_run_curve(out);
    log_info("curves: {}/figure.png", out);
  } catch (const Error& error) {
    log_warning("no curve was drawn: {}", error.what());
  }
  try {
    write_atomic(fs::path(out) / "report.md", run_report(out, called_as()));
    log_info("report: {}/report.md", out);
  } catch (const Error& error) {
    log_warning("no report was written: {}", error.what());
  }
}

std::string resume_command(const TrainArguments& arguments, const std::string& out) {
  std::string words = called_as() + " train " + shell_quoted(arguments.config);
  for (const std::string& setting : arguments.overrides) words += " " + shell_quoted(setting);
  if (arguments.expert_parallel > 0) {
    words += fmt::format(" --expert-parallel {}", arguments.expert_parallel);
  }
  if (arguments.device != "cpu") words += " --device " + shell_quoted(arguments.device);
  if (arguments.trust) words += " --trust";
  return fmt::format("{} --out {} --resume", words, shell_quoted(out));
}

void report(const TrainResult& result, const TrainArguments& arguments, const std::string& out,
            const ProcessMesh* processes) {
  if (result.signal != 0) {
    log_info("stopped at step {}, saved; resume with: {}", result.steps,
             resume_command(arguments, out));
    if (processes == nullptr) return;
    log_info("the run can be resumed with any number of processes{}",
             processes->config().expert_parallel_size == 1
                 ? ""
                 : " that --expert-parallel divides; with one, leave the option out");
    return;
  }
  log_info("done: {}, {}", count_text(result.steps, "step"), result.checkpoint.string());
  if (!result.best.empty()) log_info("best: {}, {}", result.best_value, result.best.string());
  describe_run(out);
}

/// Numbers of processes with commas between them.
CLI::Validator process_counts() {
  return CLI::Validator(
      [](std::string& value) {
        std::string problem;
        for (std::string count : split(value, ',')) {
          if (problem.empty()) problem = whole_number(1, kMaxProcesses)(count);
        }
        return problem;
      },
      "");
}

/// Returns the numbers of processes that a dry run plans on paper, none where it is not asked to.
std::vector<int64_t> processes_on_paper(const TrainArguments& arguments,
                                        const ParallelConfig& parallel) {
  const bool asked = !arguments.processes.empty() || !arguments.gpu.empty();
  if (!arguments.dry_run) {
    if (!asked) return {};
    fail_usage("train: {} is for a dry run; add --dry-run",
               !arguments.processes.empty() ? "--processes" : "--gpu");
  }
  if (!arguments.gpu.empty()) gpus().at(arguments.gpu, "train: --gpu");
  std::vector<int64_t> process_counts;
  for (const std::string& count : split(arguments.processes, ',')) {
    if (!count.empty()) process_counts.push_back(std::stoll(count));
  }
  if (!process_counts.empty()) return process_counts;
  const Launch launch = read_launch(process_environment());
  if (!launch.is_single_process()) return {launch.world_size};
  if (!asked) return {};
  return {parallel.expert_parallel_size * std::max<int64_t>(1, parallel.num_replicas)};
}

int train(const TrainArguments& arguments) {
  const RunConfig config = read_config(arguments);
  const std::vector<int64_t> planned_processes = processes_on_paper(arguments, config.parallel);
  const std::string out = arguments.out.empty() ? "checkpoints/" + config.name : arguments.out;
  TrainerOptions options;
  options.out = out;
  options.resume = arguments.resume;
  options.device = arguments.device;
  std::optional<ProfiledSteps> profiled;
  if (!arguments.profile.empty()) profiled = parse_profiled_steps(arguments.profile);
  if (arguments.dry_run) {
    if (follows_a_leader()) return 0;  // It prints the plan.
    if (!arguments.out.empty()) RunFolder::check(out, arguments.resume);
    const std::string plan =
        dry_run(config, planned_processes, arguments.gpu.empty() ? "h100" : arguments.gpu);
    for (const PhaseConfig& phase : config.phases) check_outside_images(out, phase.data);
    std::cout << escaped(plan, "\n");
    return 0;
  }
  options.processes = init_process_mesh(config.parallel, arguments.device);
  const StopSignal stop;  // A signal before ends the process, which may wait for others.
  options.stop = &stop;
  TrainResult result;
  std::optional<StepProfiler> profiler;
  std::optional<Trainer> trainer;  // A thread of it may wait for a lost process: it outlives that.
  run_distributed("train", options.processes, [&] {
    const ProcessMesh* const processes = options.processes.get();
    if (profiled && (processes == nullptr || processes->is_rank_zero())) {
      profiler.emplace(*profiled, options.out / "trace.json", arguments.device);
      options.on_step = [&](Model&, int64_t made) {
        profiler->before_step(made);
        return true;
      };
    }
    trainer.emplace(config, options);
    if (processes != nullptr && processes->is_rank_zero()) {
      log_info("training on {}", count_text(processes->size(), "process"));
    }
    result = trainer->run();
    if (profiler) profiler->finish(result.steps);
    if (processes == nullptr || processes->is_rank_zero())
      report(result, arguments, out, processes);
    // A launcher may end all once one has ended by a signal.
    if (processes != nullptr) processes->barrier();
  });
  return result.signal == 0 ? 0 : 128 + result.signal;
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb = add_verb(app, "train", "Train a network through the phases of a run.",
                            "train models/vmoe/recipes/smoke.json seed=2 --out checkpoints/first");
  add_topic_help(*verb, "print this help, or help on KEY.PATH, or on a model, kind or loss NAME",
                 [](const auto& words) {
                   return words.empty() ? "\n" + common_settings_help() : settings_help(words);
                 });
  verb->add_option("config", arguments->config,
                   "recipe of the run, a JSON file, e.g. models/vmoe/recipes/smoke.json")
      ->type_name("CONFIG");
  verb->add_option("overrides", arguments->overrides,
                   "settings to change, e.g. seed=2 phases.finetune.optimizer.lr=1e-4")
      ->type_name("KEY=VALUE");
  add_text(*verb, "--out", arguments->out, "DIR", "folder of the run (checkpoints/<name>)");
  verb->add_flag("--resume", arguments->resume,
                 "resume from the newest checkpoint of --out, or begin a new run where there is "
                 "none, e.g. train RUN/config.json --out RUN --resume");
  add_device(*verb, arguments->device);
  add_trust(*verb, arguments->trust);
  add_text(*verb, "--profile", arguments->profile, "FROM:STEPS",
           "first step and number of steps to record in trace.json, for Perfetto");
  verb->add_flag("--dry-run", arguments->dry_run,
                 "check all and print the plan without training; files may be missing");
  add_value(*verb, "--processes", arguments->processes, "N[,N...]", process_counts(),
            "numbers of processes, one GPU each; --dry-run estimates their step");
  add_text(*verb, "--gpu", arguments->gpu, "NAME",
           fmt::format("name of the planned GPU: {} (h100)", fmt::join(gpus().names(), ", ")));
  add_value(*verb, "--expert-parallel", arguments->expert_parallel, "K",
            whole_number(1, kMaxProcesses),
            "number of processes that shard experts (expert_parallel_size)");
  verb->callback([arguments, &exit_code] { exit_code = train(*arguments); });
}

}  // namespace moesaic::tools
