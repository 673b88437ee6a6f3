// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/export/safetensors.h"
#include "moesaic/export/torchscript.h"
#include "verbs.h"

namespace moesaic::tools {
namespace {

namespace fs = std::filesystem;
using Writer = std::function<void(const Model&, const fs::path&, const ExportInfo&)>;

struct ExportArguments {
  fs::path checkpoint, out;
  std::string format;
};

const std::map<std::string, Writer>& formats() {
  static const std::map<std::string, Writer> list = {{"safetensors", export_safetensors},
                                                     {"torchscript", export_torchscript}};
  return list;
}

/// Before a network is loaded that could then not be written.
void check_target(const ExportArguments& arguments) {
  const bool file =
      arguments.format == "torchscript" || arguments.out.extension() == ".safetensors";
  if (file) {
    check_new_file(arguments.out, "--out");
  } else {
    check_new_folder(arguments.out, "--out");
  }
}

void export_model(const ExportArguments& arguments) {
  const auto format = formats().find(arguments.format);
  if (format == formats().end()) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : formats()) names.push_back(name);
    fail_usage("export: unknown format '{}'; {}", arguments.format,
               did_you_mean(arguments.format, names));
  }
  check_target(arguments);
  const fs::path folder = resolve_checkpoint(arguments.checkpoint);
  format->second(*load_model(folder), arguments.out, export_info(folder));
}

}  // namespace

void add_export(CLI::App& app, int& /*exit_code*/) {
  const auto arguments = std::make_shared<ExportArguments>();
  CLI::App* verb = app.add_subcommand("export", "write a network for use without this library");
  verb->add_option("checkpoint", arguments->checkpoint, "a run or a checkpoint")
      ->required()
      ->check(not_empty())
      ->type_name("CHECKPOINT");
  verb->add_option("--format", arguments->format,
                   "safetensors, the form that lasts, or torchscript, one file that PyTorch and "
                   "LibTorch run as it is")
      ->required()
      ->type_name("NAME");
  verb->add_option("--out", arguments->out,
                   "a new file; for safetensors a new folder, unless it ends in .safetensors")
      ->required()
      ->check(not_empty())
      ->type_name("FILE");
  verb->footer(
      "PyTorch has deprecated TorchScript as of version 2.11. Keep safetensors beside such a\n"
      "file: weights, config.json, labels.json and preprocess.json are all that a reader needs.");
  verb->callback([arguments] { export_model(*arguments); });
}

}  // namespace moesaic::tools
