// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "command_line.h"
#include "moesaic/base/signal.h"
#include "moesaic/config/document.h"
#include "moesaic/data/source.h"
#include "moesaic/export/formats.h"

namespace moesaic::tools {
namespace {

struct ExportArguments {
  fs::path checkpoint;
  std::string format, precision = "float32";
  bool trust = false, without_capacity = false, with_preprocessing = false;
  ExportOptions options;
};

/// Returns a line for each format with this text about it.
std::string listed_formats(std::string ExportFormat::*text) {
  std::vector<std::string> items;
  for (const auto& [name, format] : export_formats().entries()) {
    items.push_back(fmt::format("{}: {}", name, format.*text));
  }
  return fmt::format("{}", fmt::join(items, "\n"));
}

/// Returns the names of the formats whose field is neither 0 nor false.
std::string formats_with(auto ExportFormat::*field) {
  std::vector<std::string> names;
  for (const auto& [name, format] : export_formats().entries()) {
    if (format.*field) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

int64_t most_shards() {
  int64_t most = 1;
  for (const auto& [name, format] : export_formats().entries()) {
    most = std::max(most, format.max_shards);
  }
  return most;
}

/// Returns the network whose experts compute all tokens that select them, whatever the batch.
std::shared_ptr<Model> without_capacity(const Checkpoint& checkpoint) {
  const std::shared_ptr<Model> shape = meta_model_of(checkpoint);
  if (!can_lift_capacity(*shape)) {
    fail_usage(
        "export: --without-capacity is for networks whose tokens choose experts and may be "
        "dropped; leave it out");
  }
  Document document(model_config(checkpoint));
  document.set(shape->setting_paths().evaluation_capacity_factor + "=0");
  return model_of(document.root(), checkpoint.model, checkpoint.folder.string());
}

void export_model(const ExportArguments& arguments) {
  const ExportFormat& format = export_formats().at(arguments.format, "export");
  const bool is_int8 = arguments.precision == "int8";
  if (is_int8 && !format.has_preprocessing) {
    fail_usage("export: --precision int8 is for the formats {}; leave it out",
               formats_with(&ExportFormat::has_preprocessing));
  }
  if (arguments.options.num_shards && format.max_shards == 0) {
    fail_usage("export: --shards is for the format {}; leave it out",
               formats_with(&ExportFormat::max_shards));
  }
  if (arguments.with_preprocessing && !format.has_preprocessing) {
    fail_usage("export: --with-preprocessing is for the formats {}; leave it out",
               formats_with(&ExportFormat::has_preprocessing));
  }
  format.check_out(arguments.options.out);  // Invalid outputs fail before the network is loaded.
  const std::string ending = arguments.options.out.extension().string();
  if (!ending.empty() && ending != "." + arguments.format &&
      export_formats().find(ending.substr(1)) != nullptr) {
    fail_usage(
        "export: --out '{}' ends as files of format {} do; name another file, or give --format {}",
        arguments.options.out.string(), ending.substr(1), ending.substr(1));
  }
  Checkpoint checkpoint = load_newest_checkpoint(
      arguments.checkpoint, {.load_optimizer = false, .trust = arguments.trust});
  check_outside_trained_images(arguments.options.out, checkpoint.config);
  const std::shared_ptr<Model> model =
      arguments.without_capacity ? without_capacity(checkpoint) : model_of(checkpoint);
  if (is_int8) use_precision(*model, "int8");
  checkpoint.model.clear();  // The model holds copies.
  const StopSignal stop;
  ExportOptions options = arguments.options;
  options.poll = [&] { stop.check(); };
  ExportInfo info = export_info(checkpoint, *model);
  if (arguments.with_preprocessing) info = with_preprocessing(std::move(info));
  format.write(*model, info, options);
  log_written(options.out);
}

}  // namespace

void add_export(CLI::App& app, int& /*exit_code*/) {
  constexpr const char* kNotes =
      "PyTorch has deprecated TorchScript as of version 2.11. Keep an export of format\n"
      "safetensors beside a TorchScript file: weights, config.json, labels.json and\n"
      "preprocess.json of the export suffice to rebuild the network.";
  const auto arguments = std::make_shared<ExportArguments>();
  ExportOptions& options = arguments->options;
  CLI::App* verb =
      add_verb(app, "export", "Export a network for use without this library.",
               "export checkpoints/small --format torchscript --out small.ts.pt", kNotes);
  add_checkpoint(*verb, "checkpoint", arguments->checkpoint);
  verb->add_option("--format", arguments->format,
                   "format of the export:\n" + listed_formats(&ExportFormat::description))
      ->required()
      ->type_name("NAME");
  add_text(*verb, "--out", options.out, "FILE",
           "output path by format:\n" + listed_formats(&ExportFormat::out_help))
      ->required();
  add_value(*verb, "--shards", options.num_shards, "N", whole_number(1, most_shards()),
            fmt::format("number of data files, for the format {} (1)",
                        formats_with(&ExportFormat::max_shards)));
  verb->add_flag("--without-capacity", arguments->without_capacity,
                 "export a network whose experts compute all tokens that select them, so that an "
                 "image's result does not depend on its batch; its accuracy may differ a little");
  verb->add_flag(
      "--with-preprocessing", arguments->with_preprocessing,
      "export a network that takes images of uint8, resized as preprocess.json says, and "
      "normalises them itself; for the formats " +
          formats_with(&ExportFormat::has_preprocessing));
  add_precision(*verb, arguments->precision, {"float32", "int8"});
  add_trust(*verb, arguments->trust);
  verb->callback([arguments] {
    require_single_process("export");
    export_model(*arguments);
  });
}

}  // namespace moesaic::tools
