// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "command_line.h"
#include "moesaic/base/process.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/signal.h"
#include "moesaic/data/source.h"
#include "moesaic/prune/calibration.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "moesaic/report/figure.h"
#include "moesaic/report/prune_search.h"
#include "moesaic/train/distributed_run.h"
#include "moesaic/train/evaluate.h"

namespace moesaic::tools {
namespace {

struct PruneArguments {
  PruneCheckpointOptions options;
  std::string keep, plan, scope = "layer", data, split, figure, calibration, save_calibration;
  std::optional<double> keep_parameters, max_drop;
  std::string search = kBisection;
  std::vector<int64_t> exclude_blocks;
  int64_t images = CalibrateOptions().num_images;
  bool json = false;
};

void check_split(const std::string& split) {
  if (split != "test") return;
  fail_usage(
      "prune: --split: test images must not select the network that they test; choose train or "
      "validation");
}

std::string examples_of(const CheckpointData& data) {
  return example_noun(data.dataset->info()) + "s";
}

/// Returns what the statistics of these images are of.
CalibrationSource calibration_source(const PruneArguments& arguments, const Checkpoint& checkpoint,
                                     const CheckpointData& data) {
  CalibrationSource source = network_source(checkpoint);
  source["data"] = data_fingerprint(*data.dataset);
  source["split"] = data.split;
  source["images"] = std::to_string(std::min(arguments.images, data.dataset->size()));
  source["batch_size"] = std::to_string(trained_batch_size(checkpoint));
  source["seed"] = std::to_string(arguments.options.prune.seed);
  return source;
}

ExpertStatistics calibrate_with_bar(const PruneArguments& arguments, const Checkpoint& checkpoint,
                                    Model& model, const StopSignal& stop) {
  CheckpointData data = open_checkpoint_data(checkpoint, {}, arguments.data, arguments.split);
  check_split(data.split);
  adapt_data(data, checkpoint, model, ClassNameSource::data);  // Calibration looks at no label.
  CalibrationSource source;
  if (!arguments.calibration.empty() || !arguments.save_calibration.empty()) {
    source = calibration_source(arguments, checkpoint, data);
  }
  if (!arguments.calibration.empty()) {
    return read_calibration(arguments.calibration, source, model);
  }
  log_info("calibrating by {} {} of {}", data.split, examples_of(data), data.name);
  Progress bar({.label = "calibrate", .unit = examples_of(data)});
  ExpertStatistics use = calibrate(model, data.dataset,
                                   {.num_images = arguments.images,
                                    .batch_size = trained_batch_size(checkpoint),
                                    .seed = arguments.options.prune.seed,
                                    .progress = [&](int64_t done, int64_t total) {
                                      stop.check();
                                      bar.show(done, total);
                                    }});
  if (!arguments.save_calibration.empty()) {
    save_calibration(arguments.save_calibration, use, source);
    log_written(arguments.save_calibration);
  }
  return use;
}

/// Returns what the command line keeps. A search finds the number, so it is given scope and
/// excluded blocks with any.
KeepSpec keep_of(const PruneArguments& arguments) {
  KeepSpec keep = KeepSpec::fraction(1.0);
  if (!arguments.keep.empty()) keep = KeepSpec::parse(arguments.keep);
  if (arguments.keep_parameters) {
    keep = KeepSpec::parameters(*arguments.keep_parameters, "--keep-parameters");
  }
  if (arguments.scope == "network") keep.set_scope(KeepScope::network);
  keep.exclude_blocks(arguments.exclude_blocks);
  return keep;
}

void check_one_size(const PruneArguments& arguments) {
  const int given = int{!arguments.keep.empty()} + int{arguments.keep_parameters.has_value()} +
                    int{arguments.max_drop.has_value()} + int{!arguments.plan.empty()};
  const bool chooses = !arguments.exclude_blocks.empty() || arguments.scope != "layer";
  if (!arguments.plan.empty() && chooses) {
    fail_usage("prune: --plan lists the experts to keep; leave --exclude-blocks and --scope out");
  }
  if (given == 1) return;
  fail_usage(
      "prune: {} of experts to keep; give one of --keep, --keep-parameters, --max-drop and --plan",
      given == 0 ? "no option gives the number" : "several options give the number");
}

/// Refuses options that would change nothing to pruning by `options`.
void check_effects(const PruneArguments& arguments, const PruneCheckpointOptions& options,
                   const CLI::App& verb) {
  const auto refuse = [&](const char* option, const std::string& user) {
    if (verb.get_option(option)->count() == 0) return;
    fail_usage("prune: {} has no effect here; it is for {}", option, user);
  };
  const bool searches = arguments.max_drop.has_value(), ranks = !options.plan;
  if (!searches) {
    for (const char* option : {"--search", "--figure"}) refuse(option, "--max-drop");
  }
  if (searches && arguments.search == kGreedy && arguments.scope == "network") {
    fail_usage(
        "prune: --search greedy takes experts from one layer at a time; leave --scope network out, "
        "or choose --search {}",
        kBisection);
  }
  if (!ranks) {
    for (const char* option : {"--criterion", "--pretrained"}) {
      refuse(option, "ranking experts, and --plan lists those to keep");
    }
  }
  if (needs_images(options)) return;
  if (!ranks || options.prune.criterion != "random") {
    refuse("--seed", "--criterion random and the order of calibration images");
  }
  std::string users = "--replace mean, --replace merge and the criteria that need images:";
  for (const Criterion& criterion : criteria()) {
    if (criterion.needs_images) users += ' ' + criterion.name;
  }
  for (const char* option : {"--images", "--calibration", "--save-calibration"}) {
    refuse(option, users);
  }
  if (searches) return;
  for (const char* option : {"--data", "--split"}) refuse(option, "--max-drop, " + users);
}

/// Finds the plan by --max-drop.
PrunePlan search_plan(const PruneArguments& arguments, const PruneCheckpointOptions& options,
                      const StopSignal& stop) {
  if (!arguments.figure.empty()) check_new_figure(arguments.figure, "--figure");
  const Checkpoint checkpoint = load_newest_checkpoint(options.finetuned, options.load_options());
  const std::shared_ptr<Model> shape = meta_model_of(checkpoint);
  CheckpointData data = open_checkpoint_data(checkpoint, {}, arguments.data, arguments.split);
  check_split(data.split);
  adapt_data(data, checkpoint, *shape);
  if (!arguments.figure.empty()) check_outside_images(arguments.figure, data.name);
  if (arguments.split.empty() && data.split == "train") {
    log_warning(
        "prune: {} has no validation split, so accuracy is measured on training {}, where it falls "
        "less than on new ones; give --data with a validation split",
        data.name, examples_of(data));
  } else {
    log_info("searching by {} {} of {}", data.split, examples_of(data), data.name);
  }
  PruneSearchOptions search;
  search.max_drop = *arguments.max_drop;
  search.method = arguments.search;
  search.device = options.device;
  search.evaluate.batch_size = trained_batch_size(checkpoint);
  search.evaluate.loss = trained_loss(checkpoint);
  PruneSearch found;
  {
    Progress bar({.label = "search", .unit = "networks"});
    search.progress = [&](int64_t done, int64_t at_most) {
      bar.show(done, at_most);
      stop.check();
    };
    found = search_pruning(options, checkpoint, data.dataset, search);
  }
  (arguments.json ? std::cerr : std::cout) << to_text(found) << '\n';
  if (!arguments.figure.empty()) {
    draw_figure_file(arguments.figure,
                     search_figure(found, fs::path(arguments.figure).stem().string()));
    log_written(arguments.figure);
  }
  return found.plan;
}

void prune(const PruneArguments& arguments, const CLI::App& verb) {
  PruneCheckpointOptions options = arguments.options;
  check_one_size(arguments);
  if (!arguments.plan.empty()) options.plan = read_plan(arguments.plan);
  check_effects(arguments, options, verb);
  if (options.out.empty() && !options.dry_run) {
    fail_usage("prune: --out is missing; name a new folder, or give --dry-run for the plan alone");
  }
  check_outside_images(options.out, arguments.data);
  if (!arguments.save_calibration.empty()) {
    check_new_file(arguments.save_calibration, "--save-calibration");
    check_outside_images(arguments.save_calibration, arguments.data);
  }
  if (!options.plan) options.prune.keep = keep_of(arguments);
  if (!options.plan && options.pretrained.empty() &&
      criterion_of(options.prune.criterion).needs_pretrained) {
    options.pretrained = find_pretrained(options.finetuned, options.trust);
    if (!options.pretrained.empty()) {
      log_info("prune: compares with {}, the network before fine-tuning",
               options.pretrained.string());
    }
  }
  std::optional<StopSignal> stop;  // Elsewhere a signal ends the program.
  if (arguments.max_drop || needs_images(options)) stop.emplace();
  options.calibrate = [&](const Checkpoint& checkpoint, Model& model) {
    return calibrate_with_bar(arguments, checkpoint, model, *stop);
  };
  if (arguments.max_drop) {
    if (!options.dry_run) check_new_folder(options.out, "prune");
    options.searched_plan = search_plan(arguments, options, *stop);
  }
  const PruneCheckpointResult result = prune_checkpoint(options);
  (arguments.json ? std::cerr : std::cout) << escaped(describe(result), "\n");
  if (arguments.json) std::cout << to_json(result.plan).dump(2) << '\n';
  if (options.dry_run) return;
  log_written(options.out);
  log_info("evaluate: {} eval {}; continue training with a recipe that has \"init\": {}",
           called_as(), shell_quoted(options.out.string()),
           nlohmann::json(options.out.string()).dump());
}

void add_sizes(CLI::App& verb, const std::shared_ptr<PruneArguments>& arguments) {
  verb.option_defaults()->group("Number of experts kept (one of these)");
  verb.add_option(
          "--keep", arguments->keep,
          "experts kept in each layer, or by each member of an ensemble: a fraction of the experts "
          "before any pruning, with a decimal point (0.25), a count without one (4), or a JSON "
          "file {\"<block>\": count or [ids]}")
      ->type_name("FRACTION|COUNT|FILE");
  add_value(
      verb, "--keep-parameters", arguments->keep_parameters, "FRACTION", number(0.0, 1.0),
      "largest fraction of the network's parameters kept; the most experts that fit are kept");
  add_value(verb, "--max-drop", arguments->max_drop, "FRACTION", number(0.0, 0.99),
            "largest loss of accuracy on the validation split, as a fraction of its images "
            "(0.01: one point); the fewest experts within it are kept");
  add_text(verb, "--plan", arguments->plan, "FILE",
           "plan to follow, a JSON file as prune --dry-run --json prints it; edits are allowed");
}

/// Returns the meaning of --replace, with a line for each replacement.
std::string replace_option_help() {
  return fmt::format("{}\n({}, or with --plan that of the plan)",
                     fmt::join(split(kReplaceHelp, ';'), "\n"), kReplaceDefaultHelp);
}

void add_choice(CLI::App& verb, const std::shared_ptr<PruneArguments>& arguments) {
  PruneOptions& prune = arguments->options.prune;
  add_value(verb, "--criterion", prune.criterion, "NAME", one_of_words(criterion_names()),
            fmt::format("criterion that ranks the experts (meanings: moesaic list criteria): {}",
                        fmt::join(criterion_names(), " ")))
      ->capture_default_str();
  add_value(verb, "--scope", arguments->scope, "layer|network", one_of_words(keep_scope_names()),
            "scope of the ranking: within each layer, or over all layers of the network")
      ->capture_default_str();
  const auto blocks = whole_number(0, std::numeric_limits<int64_t>::max());
  CLI::Option* exclude =
      add_value(verb, "--exclude-blocks", arguments->exclude_blocks, "BLOCKS", blocks,
                "blocks that keep all their experts: --exclude-blocks 9,11")
          ->delimiter(',');
  verb.add_option_function<std::vector<int64_t>>(
          "--whole",
          [arguments](const std::vector<int64_t>& given) {
            log_warning(
                "'--whole' is called '--exclude-blocks' now; the former name is still read");
            arguments->exclude_blocks = given;
          })
      ->delimiter(',')
      ->check(blocks)
      ->excludes(exclude)
      ->group("");  // Not in the help.
  add_value(verb, "--replace", prune.replace, "nothing|mean|merge|reroute",
            one_of_words(replacement_names()), replace_option_help());
  verb.add_option("--seed", prune.seed,
                  "seed of --criterion random, and of the order of calibration images")
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  add_value(verb, "--search", arguments->search, "bisection|greedy",
            one_of_words({kBisection, kGreedy}),
            "search method of --max-drop; bisection: over one number of experts for all layers; "
            "greedy: the least costly expert, one at a time, with many more evaluations")
      ->capture_default_str();
  add_text(verb, "--figure", arguments->figure, "FILE",
           "figure of the networks that --max-drop tried: a new .png or .svg file, with gnuplot's "
           "script and data beside it");
}

void add_images(CLI::App& verb, const std::shared_ptr<PruneArguments>& arguments) {
  verb.option_defaults()->group(
      "Images for --max-drop, --replace mean or merge, and criteria that need images");
  add_value(verb, "--data", arguments->data, "NAME", known_dataset(),
            "dataset (that of the checkpoint's training)");
  verb.add_option("--split", arguments->split,
                  "split of the dataset (validation where there is one, else train)")
      ->type_name("NAME");
  verb.add_option("--images", arguments->images,
                  "number of calibration images, drawn at random by --seed (--max-drop evaluates "
                  "the whole split)")
      ->check(whole_number(1, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  CLI::Option* const read =
      add_text(verb, "--calibration", arguments->calibration, "FILE.safetensors",
               "file of --save-calibration, read instead of running the images through the "
               "network; network, images and seed must be the same");
  add_text(verb, "--save-calibration", arguments->save_calibration, "FILE.safetensors",
           "new file for the statistics that calibration images give, for all criteria")
      ->excludes(read);
}

}  // namespace

void add_prune(CLI::App& app, int& /*exit_code*/) {
  const auto arguments = std::make_shared<PruneArguments>();
  PruneCheckpointOptions& options = arguments->options;
  CLI::App* verb = add_verb(app, "prune", "Remove experts from a fine-tuned network.",
                            "prune checkpoints/first --keep 0.5 --out checkpoints/small");
  add_checkpoint(*verb, "--finetuned,checkpoint", options.finetuned);
  add_text(*verb, "--pretrained", options.pretrained, "CHECKPOINT",
           "network before fine-tuning, for router-norm-change and neuron-magnitude-change; other "
           "criteria only compare the shapes of both networks (the run's earlier phase, or the "
           "run's init)");
  add_text(*verb, "--out", options.out, "DIR", "folder of the new checkpoint, missing or empty");
  add_sizes(*verb, arguments);
  verb->option_defaults()->group("Further options");
  add_choice(*verb, arguments);
  add_images(*verb, arguments);
  verb->option_defaults()->group("Further options");
  add_device(*verb, options.device);
  add_trust(*verb, options.trust);
  verb->add_flag("--dry-run", options.dry_run, "print the plan without writing a checkpoint");
  verb->add_flag("--json", arguments->json, "print one JSON document: the plan");
  verb->callback([arguments, verb] {
    require_single_process("prune");
    prune(*arguments, *verb);
  });
}

}  // namespace moesaic::tools
