// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <string>

#include "command_line.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/export/predict.h"
#include "moesaic/train/evaluate_checkpoint.h"
#include "verbs.h"

namespace moesaic::tools {

void add_predict(CLI::App& app, int& /*exit_code*/) {
  struct PredictArguments {
    std::filesystem::path checkpoint, input, output;
    std::string device = "cpu";
    PredictOptions options;
  };
  const auto arguments = std::make_shared<PredictArguments>();
  CLI::App* verb = app.add_subcommand("predict", "apply a network to a file of images");
  verb->add_option("checkpoint", arguments->checkpoint, "a run or a checkpoint")
      ->required()
      ->check(not_empty())
      ->type_name("CHECKPOINT");
  verb->add_option("--input", arguments->input,
                   "safetensors with 'images' [batch, C, H, W] float32, normalised")
      ->required()
      ->check(not_empty())
      ->type_name("FILE");
  verb->add_option("--output", arguments->output,
                   "safetensors with 'logits' and 'pre_logits'; a new file")
      ->required()
      ->check(not_empty())
      ->type_name("FILE");
  verb->add_flag("--routing", arguments->options.routing,
                 "also 'routing.<block>.logits' and 'routing.<block>.combine' [tokens, experts]");
  verb->add_option("--batch-size", arguments->options.batch_size,
                   "images at a time; networks whose experts have a capacity take all at once")
      ->check(batch_size())
      ->capture_default_str();
  add_device(*verb, arguments->device);
  verb->callback([arguments] {
    check_input_file(arguments->input);
    check_new_file(arguments->output, "--output");
    Checkpoint checkpoint = load_newest_checkpoint(arguments->checkpoint, {.optimizer = false});
    const auto model = model_of(checkpoint);
    checkpoint.model.clear();  // The model holds copies.
    model->to(at::Device(arguments->device));
    arguments->options.loss = trained_loss(checkpoint);
    predict_file(*model, arguments->input, arguments->output, arguments->options);
    log_written(arguments->output);
  });
}

}  // namespace moesaic::tools
