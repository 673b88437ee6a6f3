// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/signal.h"
#include "moesaic/checkpoint/program.h"
#include "moesaic/data/source.h"
#include "moesaic/export/predict.h"
#include "moesaic/report/evaluation_figures.h"
#include "moesaic/report/results.h"
#include "moesaic/train/evaluate.h"

namespace moesaic::tools {

namespace {

struct EvalArguments {
  std::vector<std::string> checkpoints;
  EvaluateCheckpointOptions options;
  std::string class_name_source = "checkpoint";
  bool json = false;
  std::string tsne;
  EvaluationPointsOptions points;
  std::vector<std::string> confusion;
  std::string routing_images, features, mistakes;
  int64_t images = 8;

  /// Returns the files that show one checkpoint.
  std::vector<fs::path> files() const {
    std::vector<fs::path> files(confusion.begin(), confusion.end());
    for (const std::string& file : {routing_images, tsne, features, mistakes}) {
      if (!file.empty()) files.emplace_back(file);
    }
    return files;
  }
};

CheckpointEvaluation evaluate_with_bar(EvaluateCheckpointOptions options, const StopSignal& stop) {
  const auto& processes = options.evaluate.processes;
  std::optional<Progress> bar;
  if (!processes || processes->is_rank_zero()) {
    bar.emplace(ProgressOptions{.label = "eval", .unit = "examples"});
  }
  options.evaluate.on_progress = [&](int64_t done, int64_t total) {
    if (bar) bar->show(done, total);
    return !stop.is_requested();
  };
  return evaluate_checkpoint(options);
}

/// Draws the points. Returns the program's exit code.
int draw_points(const EvalArguments& arguments, const EvaluationPoints& points,
                const StopSignal& stop) {
  const bool drawn = [&] {
    Progress bar({.label = "t-SNE", .unit = "steps"});
    return draw_tsne(points, arguments.points.has_boundary, arguments.tsne,
                     [&](int64_t done, int64_t total) {
                       bar.show(done, total);
                       return !stop.is_requested();
                     });
  }();
  if (!drawn) {
    log_info("stopped; no figure was drawn");
    return 128 + stop.number();
  }
  log_info("{} points, coloured by {}: {}", points.index_N.size(0), points.color, arguments.tsne);
  return 0;
}

void write_confusions(const EvalArguments& arguments, const CheckpointEvaluation& result) {
  const Evaluation& evaluation = result.evaluation;
  for (const std::string& file : arguments.confusion) {
    const std::string title =
        fmt::format("{}: {:.2f} % of {} {} images", one_line(name_without_folders(result.data), 30),
                    evaluation.metric("accuracy"), evaluation.num_images, result.split);
    write_confusion(evaluation.confusion, result.classes, title, file);
    log_written(file);
  }
}

void draw_mistakes(const EvalArguments& arguments, const CheckpointEvaluation& result) {
  constexpr int64_t kMistakes = 64;
  const int64_t count = write_mistakes(result, kMistakes, arguments.mistakes);
  if (count == 0) return log_info("no mistake was made, so {} was not written", arguments.mistakes);
  log_written(arguments.mistakes);
}

/// Returns a table with a line for each network.
std::string comparison(const std::vector<CheckpointEvaluation>& results) {
  const auto value = [](const CheckpointEvaluation& result, const std::string& name) {
    for (const auto& [metric, text] : result.metric_rows) {
      if (metric == name) return text;
    }
    return std::string("-");
  };
  const std::string metric = results.front().metric_rows.front().first;
  TextTable table({"checkpoint", "data", metric, "parameters", "FLOPs", "per second"}, 2);
  for (const CheckpointEvaluation& result : results) {
    table.add({escaped(result.checkpoint.string()),
               fmt::format("{}, {} {}", escaped(name_without_folders(result.data)),
                           result.evaluation.num_images, result.split),
               value(result, metric), fmt::to_string(result.num_parameters),
               fmt::format("{:.4g}", result.flops_per_image),
               fmt::format("{:.0f}", result.evaluation.images_per_second)});
  }
  return table.text() + "FLOPs are of one image; moesaic bench measures times with more care.\n";
}

/// Evaluates each checkpoint. Returns the number of the signal that ended an evaluation, or 0.
int64_t evaluate_each(const EvalArguments& arguments, EvaluateCheckpointOptions options,
                      const StopSignal& stop, std::vector<CheckpointEvaluation>& results) {
  const auto& processes = options.evaluate.processes;
  int64_t signal = 0;
  run_distributed("eval", processes, [&] {
    for (const std::string& checkpoint : arguments.checkpoints) {
      options.checkpoint = checkpoint;
      results.push_back(evaluate_with_bar(options, stop));
      if (!results.back().evaluation.is_complete) break;
    }
    if (results.back().evaluation.is_complete) return;
    signal = processes ? processes->all_reduce_max(stop.number()) : stop.number();
    log_info("stopped; no result was written");
    if (processes) processes->barrier();  // A launcher may end all once one has ended.
  });
  return signal;
}

/// Refuses what cannot be written, and what these checkpoints or several processes do not give.
void check_arguments(const EvalArguments& arguments) {
  if (arguments.checkpoints.size() > 1 && !arguments.files().empty()) {
    fail_usage(
        "eval: --confusion, --features, --mistakes, --routing-images and --tsne show one "
        "checkpoint, not {}; name one",
        arguments.checkpoints.size());
  }
  std::string inner;  // What needs more than logits.
  if (!arguments.options.few_shot.shots.empty()) inner = "--shots";
  if (!arguments.routing_images.empty()) {
    check_new_figure(arguments.routing_images, inner = "--routing-images");
  }
  if (!arguments.features.empty()) {
    check_new_file(arguments.features, inner = "--features");
    check_can_write(fs::path(arguments.features).parent_path());
  }
  if (!arguments.tsne.empty()) check_new_figure(arguments.tsne, inner = "--tsne");
  for (const std::string& file : arguments.confusion) check_new_confusion(file, "--confusion");
  if (!arguments.mistakes.empty()) check_new_mistakes(arguments.mistakes);
  const fs::path& labels = arguments.options.real_labels;
  if (!labels.empty()) check_input_file(labels);
  if (inner.empty()) return;
  for (const std::string& checkpoint : arguments.checkpoints) {
    if (!is_exported_program(checkpoint)) continue;
    fail_usage("eval: {}: a program (.pt2) gives logits alone; give the run", inner);
  }
  require_single_process("eval " + inner);
}

int run_eval(const EvalArguments& arguments) {
  check_arguments(arguments);
  const bool points = !arguments.tsne.empty(), routing = !arguments.routing_images.empty();
  EvaluationPointCollector collector(arguments.points);
  RoutedImageCollector routed(arguments.images);
  std::optional<FeatureFile> features;
  EvaluateCheckpointOptions options = arguments.options;
  if (arguments.class_name_source == "data") options.class_name_source = ClassNameSource::data;
  options.files = arguments.files();
  options.evaluate.on_batch = [&](const EvaluatedBatch& batch) {
    if (batch.first == 0) {
      const DatasetInfo& info = batch.dataset.info();
      for (const std::string& file : arguments.confusion) check_confusion_classes(info, file);
      if (!arguments.mistakes.empty()) check_can_show_mistakes(info);
      if (!arguments.features.empty()) features.emplace(arguments.features);
    }
    if (points) collector.add(batch);
    if (routing) routed.add(batch);
    if (features) features->add(batch);
  };
  options.evaluate.processes = init_process_mesh({}, options.device);
  const StopSignal stop;  // A signal before ends the process, which may wait for others.
  std::vector<CheckpointEvaluation> results;
  const int64_t signal = evaluate_each(arguments, options, stop, results);
  if (signal != 0) return 128 + static_cast<int>(signal);
  if (const auto& processes = options.evaluate.processes; processes && !processes->is_rank_zero())
    return 0;
  if (results.size() > 1) {
    auto list = nlohmann::ordered_json::array();
    for (const CheckpointEvaluation& each : results) list.push_back(to_json(each));
    std::cout << (arguments.json ? list.dump(2) + "\n" : comparison(results));
    return 0;
  }
  const CheckpointEvaluation& result = results.front();
  std::cout << (arguments.json ? to_json(result).dump(2) + "\n" : escaped(to_text(result), "\n"))
            << std::flush;
  write_confusions(arguments, result);
  if (features) {
    features->finish(result.evaluation.predictions);
    log_written(arguments.features);
  }
  if (!arguments.mistakes.empty()) draw_mistakes(arguments, result);
  if (routing) {
    const fs::path file = arguments.routing_images;
    draw_figure_file(file, routing_images_figure(routed.images(), file.stem().string()));
    log_written(file);
  }
  return points ? draw_points(arguments, collector.points(), stop) : 0;
}

void add_probe_options(CLI::App& verb, FewShotOptions& few) {
  verb.option_defaults()->group("Options of the few-shot probe");
  CLI::Option* shots =
      add_value(verb, "--shots", few.shots, "N[,N...]", whole_number(1, 1 << 20),
                "numbers of images per class of the train split from which a linear map of "
                "the features learns, measured in place of the network's own outputs: "
                "--shots 1,5,10,25")
          ->delimiter(',')
          ->allow_extra_args(false);
  CLI::Option* seeds = verb.add_option("--shot-seeds", few.num_seeds,
                                       "number of random choices of the images of --shots")
                           ->check(whole_number(1, 1000))
                           ->capture_default_str();
  CLI::Option* l2 =
      add_value(verb, "--shot-l2", few.l2, "L2[,L2...]", number(1e-12, 1e12),
                "strengths of the L2 regularisation, of which the most accurate on --split "
                "is reported (powers of two from 2^-10 to 2^19)")
          ->delimiter(',')
          ->allow_extra_args(false);
  for (CLI::Option* option : {seeds, l2}) option->needs(shots);
  for (const char* other : {"--classes-of", "--confusion", "--features", "--mistakes", "--real",
                            "--real-labels", "--routing-images", "--tsne"}) {
    shots->excludes(verb.get_option(other));
  }
}

void add_tsne_options(CLI::App& verb, const std::shared_ptr<EvalArguments>& arguments) {
  verb.option_defaults()->group("Options of the t-SNE figure");
  CLI::Option* tsne = add_text(verb, "--tsne", arguments->tsne, "FILE",
                               "t-SNE plot of the images: a new .png or .svg file, with gnuplot's "
                               "script and data beside it");
  CLI::Option* of = add_value(verb, "--tsne-of", arguments->points.features, "inputs|embedding",
                              one_of_words({"inputs", "embedding"}),
                              "features that t-SNE embeds; inputs: the network's inputs; "
                              "embedding: the inputs of its last layer")
                        ->capture_default_str();
  CLI::Option* points = verb.add_option("--tsne-points", arguments->points.num_points,
                                        "largest number of points, drawn at random with a fixed "
                                        "seed; time grows with its square")
                            ->check(whole_number(kMinPoints, kMaxPoints))
                            ->capture_default_str();
  CLI::Option* color = add_value(verb, "--tsne-color", arguments->points.color,
                                 "expert|class|group", one_of_words({"expert", "class", "group"}),
                                 "colour of the points: expert (where the last MoE layer "
                                 "sends each image to one expert), "
                                 "class or group (expert where possible, else class)");
  CLI::Option* only = verb.add_option("--tsne-class", arguments->points.only_class,
                                      "class to which the images are restricted")
                          ->type_name("NAME");
  CLI::Option* groups =
      verb.add_option("--tsne-group", arguments->points.only_groups,
                      "groups to which the images are restricted: --tsne-group frog,ship")
          ->type_name("NAME")
          ->delimiter(',');
  CLI::Option* boundary = verb.add_flag(
      "--tsne-boundary", arguments->points.has_boundary,
      "draw where the mean prediction of nearby points changes class, for data with two classes");
  for (CLI::Option* option : {of, points, color, only, groups, boundary}) option->needs(tsne);
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<EvalArguments>();
  CLI::App* verb = add_verb(app, "eval", "Evaluate a network on a split of a dataset.",
                            "eval checkpoints/first --split test");
  add_checkpoint(*verb, "checkpoint", arguments->checkpoints, "; several are compared in a table");
  add_text(*verb, "--split", arguments->options.split, "NAME",
           "split of the dataset: train, validation or test (test, or validation where there is no "
           "test split)");
  add_value(*verb, "--data", arguments->options.data, "NAME", known_dataset(),
            "dataset (that of the checkpoint's training)");
  add_value(
      *verb, "--classes-of", arguments->class_name_source, "checkpoint|data",
      one_of_words({"checkpoint", "data"}),
      "source of the class names; checkpoint: the network, whose names or output indices (from "
      "0) the data's classes must have; data: the data's classes in order, "
      "except classes named by numbers from 0, which are the outputs of these numbers")
      ->capture_default_str();
  verb->add_option("--batch-size", arguments->options.batch_size,
                   "number of images per batch (evaluate_batch_size of the run, or 256)")
      ->check(batch_size());
  add_precision(*verb, arguments->options.evaluate.precision, {"float32", "bfloat16", "int8"});
  add_device(*verb, arguments->options.device);
  add_trust(*verb, arguments->options.trust);
  add_text(*verb, "--confusion", arguments->confusion, "FILE",
           "confusion matrix: a new .csv file, or a .png or .svg file with gnuplot's script and "
           "data beside it; may be given several times")
      ->allow_extra_args(false);
  CLI::Option* routing = add_text(
      *verb, "--routing-images", arguments->routing_images, "FILE",
      "figure of the patches that each expert of the last MoE layer receives, marked on "
      "--images images: a new .png or .svg file, with gnuplot's script and data beside it");
  verb->add_option("--images", arguments->images,
                   "number of images in --routing-images, the first ones of the split")
      ->check(whole_number(1, kMaxRoutingImages))
      ->capture_default_str()
      ->needs(routing);
  add_text(*verb, "--features", arguments->features, "FILE",
           "new safetensors file for 'pre_logits', 'labels' and 'predictions'");
  add_text(*verb, "--mistakes", arguments->mistakes, "FILE",
           "contact sheet of the 64 most confident mistakes, row by row: a new .png file, with a "
           ".csv table of them beside it");
  CLI::Option* real_labels = add_text(
      *verb, "--real-labels", arguments->options.real_labels, "FILE",
      "labels of ImageNet-ReaL: real.json, with a list of classes for each image; images without "
      "any do not count");
  CLI::Option* former =
      verb->add_option_function<std::string>("--real", [arguments](const std::string& file) {
        log_warning("'--real' is called '--real-labels' now; the former name is still read");
        arguments->options.real_labels = file;
      });
  former->check(not_empty())->excludes(real_labels)->group("");  // Not in the help.
  verb->add_flag("--json", arguments->json, "print one JSON document");
  add_tsne_options(*verb, arguments);
  add_probe_options(*verb, arguments->options.few_shot);
  verb->callback([arguments, &exit_code] { exit_code = run_eval(*arguments); });
}

}  // namespace moesaic::tools
