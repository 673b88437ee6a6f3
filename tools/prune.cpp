// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "command_line.h"
#include "moesaic/prune/criteria.h"
#include "moesaic/prune/prune_checkpoint.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

struct PruneArguments {
  PruneCheckpointOptions options;
  std::string keep;
  bool json = false;
};

std::string criteria_text() {
  std::string text = "what decides which experts stay:";
  for (const std::string& name : criterion_names()) text += ' ' + name;
  return text;
}

void prune(const PruneArguments& arguments) {
  PruneCheckpointOptions options = arguments.options;
  options.keep = KeepSpec::parse(arguments.keep);
  const PruneCheckpointResult result = prune_checkpoint(options);
  std::fputs(describe(result).c_str(), arguments.json ? stderr : stdout);
  if (arguments.json) std::fputs((to_json(result.plan).dump(2) + "\n").c_str(), stdout);
}

}  // namespace

void add_prune(CLI::App& app, int& /*exit_code*/) {
  const auto arguments = std::make_shared<PruneArguments>();
  PruneCheckpointOptions& options = arguments->options;
  CLI::App* verb = app.add_subcommand("prune", "remove experts from a fine-tuned network");
  verb->add_option("--finetuned", options.finetuned, "the run or checkpoint to prune")
      ->required()
      ->check(not_empty())
      ->type_name("DIR");
  verb->add_option("--pretrained", options.pretrained,
                   "what it was fine-tuned from; only router-norm-change needs it")
      ->check(not_empty())
      ->type_name("DIR");
  verb->add_option("--criterion", options.criterion, criteria_text())
      ->type_name("NAME")
      ->capture_default_str();
  verb->add_option("--keep", arguments->keep,
                   "of each layer, in an ensemble of each member: a fraction (0.25, to the nearest "
                   "number), a "
                   "count (4), or a JSON file {\"<block>\": count or [ids]}")
      ->required()
      ->type_name("FRACTION|COUNT|FILE");
  verb->add_option("--out", options.out, "folder of the new checkpoint, absent or empty")
      ->required()
      ->check(not_empty())
      ->type_name("DIR");
  verb->add_option("--seed", options.seed, "for --criterion random")
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  add_device(*verb, options.device);
  verb->add_flag("--json", arguments->json, "print the plan as one JSON document");
  verb->callback([arguments] { prune(*arguments); });
}

}  // namespace moesaic::tools
