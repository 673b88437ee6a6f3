// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "command_line.h"
#include "moesaic/base/process.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/signal.h"
#include "moesaic/base/terminal.h"
#include "moesaic/checkpoint/program.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/data/image_walk.h"
#include "moesaic/export/predict.h"
#include "moesaic/train/evaluate.h"

namespace moesaic::tools {
namespace {

struct PredictArguments {
  fs::path checkpoint, input, output;
  std::vector<std::string> images;
  std::string device = "cpu", precision = "float32";
  std::optional<int64_t> batch_size;
  int64_t top = PredictOptions().top_k;
  bool routing = false, json = false, csv = false, trust = false;
};

/// A network to predict with.
struct Predictor {
  fs::path folder;
  std::shared_ptr<Model> model;
  std::string loss;
  std::optional<InputSpec> input;  ///< Of images.
};

Predictor load_predictor(const PredictArguments& arguments) {
  Checkpoint checkpoint = load_newest_checkpoint(
      arguments.checkpoint,
      {.load_optimizer = false, .trust = arguments.trust, .accept_program = true});
  if (arguments.routing && is_exported_program(checkpoint.folder)) {
    fail_usage("predict: --routing: a program (.pt2) gives logits alone; give the run");
  }
  Predictor predictor{checkpoint.folder, model_of(checkpoint), trained_loss(checkpoint), {}};
  if (!arguments.images.empty()) predictor.input = input_spec_of(checkpoint, *predictor.model);
  predictor.model->to(at::Device(arguments.device));
  use_precision(*predictor.model, arguments.precision);
  return predictor;
}

void predict_tensors(const PredictArguments& arguments) {
  check_input_file(arguments.input);
  check_new_file(arguments.output, "--output");
  const Predictor predictor = load_predictor(arguments);
  predict_file(*predictor.model, arguments.input, arguments.output,
               {.returns_routing = arguments.routing,
                .batch_size = arguments.batch_size,
                .loss = predictor.loss});
  log_written(arguments.output);
}

void check_order(const PredictArguments& arguments) {
  const fs::path first = arguments.images.front();
  const bool network = fs::exists(status_of(first / "MANIFEST.json")) ||
                       fs::exists(status_of(first / "checkpoints"));
  if (!network) return;
  fail_usage("predict: the checkpoint comes first, then the images: {} predict {} {}", called_as(),
             shell_quoted(first.string()), shell_quoted(arguments.checkpoint.string()));
}

/// Returns the files that are named, and those in the folders that are. What is left out of a
/// folder is a warning, an error where that is everything; so are files of a system, which a shell
/// names by FOLDER/*.
std::vector<fs::path> listed_files(const std::vector<std::string>& names) {
  std::vector<fs::path> files;
  SkippedFiles of_system;
  for (const std::string& name : names) {
    if (!path_exists(name) || !fs::is_directory(name)) {
      check_input_file(name);
      if (is_system_file(name)) {
        of_system.add(SkipReason::hidden, name);
      } else {
        files.emplace_back(name);
      }
      continue;
    }
    const FoundImages found = image_files_in(name);
    const std::string skipped = found.skipped.text();
    if (found.files.empty()) {
      fail_usage("{}: the folder holds no image ({}){}", name, fmt::join(image_extensions(), ", "),
                 skipped.empty() ? "" : "; " + skipped);
    }
    if (!skipped.empty()) log_warning("{}: {}", name, skipped);
    files.insert(files.end(), found.files.begin(), found.files.end());
  }
  if (files.empty()) fail_usage("predict: the arguments name no image; {}", of_system.text());
  if (!of_system.empty()) log_warning("{}", of_system.text());
  return files;
}

/// Prints predictions one by one, as lines or as one JSON document, which begins with the first.
class PredictionPrinter {
 public:
  PredictionPrinter(const PredictArguments& arguments, const Predictor& predictor)
      : arguments_(arguments),
        classes_(predictor.input->classes),
        shown_classes_(disambiguated(classes_)),
        head_(arguments.csv ? "file,rank,class,probability\n" : "") {
    if (!arguments.json) return;
    head_ = "{\"checkpoint\": " + dumped(predictor.folder.string()) + ", \"images\": [\n";
  }
  ~PredictionPrinter() {
    if (arguments_.json && !first_) print("\n]}\n");
  }
  PredictionPrinter(const PredictionPrinter&) = delete;
  PredictionPrinter& operator=(const PredictionPrinter&) = delete;

  void add(const ImagePrediction& prediction) {
    if (first_) print(head_);
    if (arguments_.json) {
      print((first_ ? "" : ",\n") + dumped(to_json(prediction, classes_)));
    } else if (prediction.problem.empty()) {
      print(arguments_.csv ? to_csv(prediction, classes_) : to_text(prediction, shown_classes_));
    }
    first_ = false;
  }

 private:
  /// Returns a line of JSON; names of files may be other bytes than UTF-8.
  static std::string dumped(const nlohmann::ordered_json& json) {
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  static void print(const std::string& text) { std::cout << text; }

  const PredictArguments& arguments_;
  const std::vector<std::string>& classes_;
  std::vector<std::string> shown_classes_;  ///< Names for readers.
  std::string head_;
  bool first_ = true;
};

int predict_files(const PredictArguments& arguments) {
  if (arguments.routing && !arguments.json) {
    fail_usage("predict: --routing of images needs --json; add it");
  }
  check_order(arguments);
  const std::vector<fs::path> files = listed_files(arguments.images);
  const Predictor predictor = load_predictor(arguments);
  const PredictOptions options{.returns_routing = arguments.routing,
                               .batch_size = arguments.batch_size,
                               .top_k = arguments.top,
                               .loss = predictor.loss};
  const StopSignal stop;
  const auto total = static_cast<int64_t>(files.size());
  int64_t done = 0, failed = 0;
  std::optional<Progress> bar;
  if (!is_terminal(stdout)) bar.emplace(ProgressOptions{.label = "predict", .total = total});
  PredictionPrinter printer(arguments, predictor);
  predict_images(*predictor.model, *predictor.input, files, options,
                 [&](const ImagePrediction& prediction) {
                   if (!prediction.problem.empty()) {
                     log_error("{}", prediction.problem);
                     ++failed;
                   }
                   printer.add(prediction);
                   if (bar) bar->advance(1);
                   ++done;
                   return !stop.is_requested();
                 });
  if (done < total) {
    log_info("stopped after {} of {} files", done, total);
    return 128 + stop.number();
  }
  return failed > 0 ? 1 : 0;
}

int predict(const PredictArguments& arguments) {
  if (!arguments.images.empty()) return predict_files(arguments);
  if (arguments.input.empty()) {
    fail_usage(
        "predict: the images are missing; name files or folders after the checkpoint, or give "
        "--input and --output");
  }
  predict_tensors(arguments);
  return 0;
}

}  // namespace

void add_predict(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<PredictArguments>();
  CLI::App* verb = add_verb(app, "predict", "Predict the classes of images.",
                            "predict checkpoints/first photos shoe.jpg --top 3");
  add_checkpoint(*verb, "checkpoint", arguments->checkpoint);
  CLI::Option* images =
      add_text(*verb, "images", arguments->images, "IMAGE|FOLDER",
               "image files (JPEG, PNG, WebP), or folders of them (read recursively, in sorted "
               "order, following links); a warning names skipped files; a corrupt file gives an "
               "error line, the others are predicted, and the exit code is 1");
  CLI::Option* top =
      verb->add_option("--top", arguments->top, "largest number of classes per image")
          ->check(whole_number(1, 1 << 20))
          ->capture_default_str();
  CLI::Option* json = verb->add_flag("--json", arguments->json, "print one JSON document");
  CLI::Option* csv =
      verb->add_flag("--csv", arguments->csv, "print lines of file, rank, class and probability");
  json->excludes(csv);
  CLI::Option* input =
      add_text(*verb, "--input", arguments->input, "FILE",
               "safetensors file with 'images' [batch, channels, height, width] float32, "
               "normalised, instead of image files");
  CLI::Option* output = add_text(*verb, "--output", arguments->output, "FILE",
                                 "new safetensors file for 'logits' and 'pre_logits'");
  input->needs(output);
  output->needs(input);
  for (CLI::Option* option : {images, top, json, csv}) input->excludes(option);
  verb->add_flag(
      "--routing", arguments->routing,
      "add the routing of each token: its experts and gates to --json, or with --input tensors "
      "'routing.<block>.logits' and 'routing.<block>.combine' [tokens, experts] to --output");
  verb->add_option(
          "--batch-size", arguments->batch_size,
          "number of images per batch (32, or 256 of --input); without effect where experts have a "
          "capacity: image files are computed one by one, and --input as one batch")
      ->check(batch_size());
  add_device(*verb, arguments->device);
  add_precision(*verb, arguments->precision, {"float32", "int8"});
  add_trust(*verb, arguments->trust);
  verb->callback([arguments, &exit_code] {
    require_single_process("predict");
    exit_code = predict(*arguments);
  });
}

}  // namespace moesaic::tools
