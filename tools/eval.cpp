// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "command_line.h"
#include "moesaic/base/progress.h"
#include "moesaic/train/evaluate_checkpoint.h"
#include "verbs.h"

namespace moesaic::tools {

namespace {

CheckpointEvaluation evaluate_with_bar(EvaluateCheckpointOptions options) {
  std::optional<Progress> bar;
  int64_t shown = 0;
  options.evaluate.proceed = [&](int64_t done, int64_t total) {
    if (!bar) bar.emplace(ProgressOptions{.label = "eval", .total = total});
    bar->advance(done - shown);
    shown = done;
    return true;
  };
  return evaluate_checkpoint(options);
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  struct EvalArguments {
    EvaluateCheckpointOptions options;
    bool json = false;
  };
  const auto arguments = std::make_shared<EvalArguments>();
  CLI::App* verb = app.add_subcommand("eval", "measure a checkpoint on a test split");
  verb->add_option("checkpoint", arguments->options.checkpoint, "a run or a checkpoint")
      ->required()
      ->check(not_empty())
      ->type_name("RUN_OR_CHECKPOINT");
  verb->add_option("--data", arguments->options.data,
                   "data set (what the checkpoint was trained on)")
      ->type_name("NAME");
  verb->add_option("--batch-size", arguments->options.evaluate.batch_size, "pictures a batch")
      ->check(batch_size())
      ->capture_default_str();
  verb->add_option("--precision", arguments->options.evaluate.precision,
                   "of products in the network: float32 | bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  verb->add_flag("--json", arguments->json, "one JSON document on standard output");
  verb->callback([arguments] {
    const CheckpointEvaluation result = evaluate_with_bar(arguments->options);
    const std::string text = arguments->json ? to_json(result).dump(2) + "\n" : to_text(result);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace moesaic::tools
