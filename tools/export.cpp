// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/base/signal.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/export/safetensors.h"
#include "moesaic/export/torchscript.h"
#include "moesaic/export/vmoe.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

namespace fs = std::filesystem;

struct ExportArguments {
  fs::path checkpoint, out;
  std::string format;
  std::optional<int64_t> shards;
};

struct ExportStopped {
  int signal = 0;
};

void write_vmoe(const Model& model, const ExportArguments& arguments, const ExportInfo& info) {
  const StopSignal stop;
  vmoe_checkpoint::WriteOptions options{.shards = arguments.shards.value_or(1)};
  options.poll = [&] {
    if (stop.requested()) throw ExportStopped{stop.number()};
  };
  export_vmoe(model, arguments.out, options, info.array_dtypes);
}

using Writer = std::function<void(const Model&, const ExportArguments&, const ExportInfo&)>;

const std::map<std::string, Writer>& formats() {
  static const std::map<std::string, Writer> list = {
      {"safetensors",
       [](const Model& model, const ExportArguments& arguments, const ExportInfo& info) {
         export_safetensors(model, arguments.out, info);
       }},
      {"torchscript",
       [](const Model& model, const ExportArguments& arguments, const ExportInfo& info) {
         export_torchscript(model, arguments.out, info);
       }},
      {"vmoe", write_vmoe}};
  return list;
}

/// Before a network is loaded that could then not be written.
void check_target(const ExportArguments& arguments) {
  if (arguments.format == "vmoe") return check_new_vmoe_prefix(arguments.out, "--out");
  if (arguments.shards) fail_usage("export: --shards is for the format vmoe");
  const bool file =
      arguments.format == "torchscript" || arguments.out.extension() == ".safetensors";
  if (file) {
    check_new_file(arguments.out, "--out");
  } else {
    check_new_folder(arguments.out, "--out");
  }
}

int export_model(const ExportArguments& arguments) {
  const auto format = formats().find(arguments.format);
  if (format == formats().end()) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : formats()) names.push_back(name);
    fail_usage("export: unknown format '{}'; {}", arguments.format,
               did_you_mean(arguments.format, names));
  }
  check_target(arguments);
  const fs::path folder = resolve_checkpoint(arguments.checkpoint);
  try {
    format->second(*load_model(folder), arguments, export_info(folder));
  } catch (const ExportStopped& stopped) {
    log_info("stopped; nothing was written");
    return 128 + stopped.signal;
  }
  return 0;
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  const auto arguments = std::make_shared<ExportArguments>();
  CLI::App* verb = app.add_subcommand("export", "write a network for use without this library");
  verb->add_option("checkpoint", arguments->checkpoint, "a run or a checkpoint")
      ->required()
      ->check(not_empty())
      ->type_name("CHECKPOINT");
  verb->add_option("--format", arguments->format,
                   "safetensors, the form that lasts; torchscript, one file that PyTorch and "
                   "LibTorch run as it is; or vmoe, what google-research/vmoe reads")
      ->required()
      ->type_name("NAME");
  verb->add_option("--out", arguments->out,
                   "a new file; for safetensors a new folder, unless it ends in .safetensors; for "
                   "vmoe the prefix of new files")
      ->required()
      ->check(not_empty())
      ->type_name("FILE");
  verb->add_option("--shards", arguments->shards, "data files of a vmoe checkpoint (1)")
      ->check(whole_number(1, vmoe_checkpoint::kMaxShards))
      ->type_name("N");
  verb->footer(
      "PyTorch has deprecated TorchScript as of version 2.11. Keep safetensors beside such a\n"
      "file: weights, config.json, labels.json and preprocess.json are all that a reader needs.");
  verb->callback([arguments, &exit_code] { exit_code = export_model(*arguments); });
}

}  // namespace moesaic::tools
