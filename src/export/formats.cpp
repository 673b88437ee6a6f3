// SPDX-License-Identifier: Apache-2.0
#include "moesaic/export/formats.h"

#include <torch/csrc/jit/serialization/export.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/nn/script.h"
#include "moesaic/train/evaluate.h"

namespace moesaic {

namespace {

/// The name in a folder, and among the extra files of safetensors::kArchiveMember.
constexpr const char* kWeightsFile = "model.safetensors";

constexpr const char* kFileEnding = ".safetensors";

bool is_one_file(const fs::path& out) {
  return out.extension() == kFileEnding;
}

void check_new_weights(const fs::path& out, const char* who) {
  if (is_one_file(out)) return check_new_file(out, who);
  const std::string ending = out.extension().string();
  if (ending.size() > 4 && nearest(ending, std::array{std::string(kFileEnding)})) {
    fs::path file = out;
    fail_usage("{}: '{}' would be a folder; did you mean '{}'?", who, out.string(),
               file.replace_extension(kFileEnding).string());
  }
  check_new_folder(out, who);
}

constexpr const char* kSharedCapacity = "images share the capacity of experts";

/// Says what a reader of the exported network has to know of batches.
void warn_of_batches(const Model& model) {
  const std::string why = batch_dependence(model);
  if (why.empty()) return;
  const bool capacity = why == kSharedCapacity && can_lift_capacity(model);
  log_warning("export: an image's result depends on the others of its batch, since {}{}", why,
              capacity ? "; --without-capacity exports a network that drops no token" : "");
}

/// Writes weights and facts as one file.
void write_one_file(const Model& model, const fs::path& file, const ExportInfo& info) {
  // Readers in other languages ask which framework's tensors these are.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const auto& [name, text] : side_files(model, info)) {
    metadata[fs::path(name).stem().string()] = text;
  }
  write_tensors(file, state_of(model), metadata);
}

auto written_by(auto exporter) {
  return [exporter](const Model& model, const ExportInfo& info, const ExportOptions& options) {
    warn_of_batches(model);
    if (options.poll) options.poll();
    if constexpr (requires { exporter(model, options.out, info, options.poll); }) {
      exporter(model, options.out, info, options.poll);
    } else {
      exporter(model, options.out, info);
    }
  };
}

/// Returns a format that Python writes.
ExportFormat recorded_format(std::string description, auto exporter) {
  return {.description = std::move(description),
          .out_help = "new file",
          .has_preprocessing = true,
          .check_out =
              [](const fs::path& out) {
                check_new_file(out, "--out");
                export_python();
              },
          .write = written_by(exporter)};
}

/// Returns the last line of an evaluation of this checkpoint's step in the metrics.jsonl of its
/// run, null where there is none.
Json last_evaluation(const Checkpoint& checkpoint) {
  const fs::path file = checkpoint.folder.parent_path().parent_path() / "metrics.jsonl";
  const auto step = checkpoint.state.find("step");
  if (step == checkpoint.state.end() || !fs::is_regular_file(status_of(file))) return {};
  Json last;
  for (const std::string& line : split(read_text(file), '\n')) {
    if (line.find("\"kind\":\"eval\"") == line.npos) continue;
    const Json found = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (found.is_object() && found.value("step", Json()) == *step) last = found;
  }
  return last;
}

}  // namespace

ExportInfo export_info(const Checkpoint& checkpoint, const Model& model) {
  ExportInfo info{.input = input_spec_of(checkpoint, model), .loss = trained_loss(checkpoint)};
  info.input.takes_bytes = false;  // The network of an export by with_preprocessing() does not.
  info.evaluation = last_evaluation(checkpoint);
  const Json::json_pointer size("/run/evaluate_batch_size");
  if (checkpoint.config.contains(size)) info.batch_size = trained_batch_size(checkpoint);
  const auto dtypes = checkpoint.config.find("array_dtypes");
  if (dtypes == checkpoint.config.end()) return info;
  const std::string from = (checkpoint.folder / "config.json").string();
  const Value stored = Value::from_json(*dtypes, from);
  for (const Value::Member& array : stored.members("array_dtypes")) {
    info.array_dtypes[array.key] = array.value.as_string("array_dtypes");
  }
  return info;
}

ExportInfo with_preprocessing(ExportInfo info) {
  info.input.takes_bytes = true;
  if (config_problem(info.input).empty()) return info;
  fail_usage(
      "export: --with-preprocessing: the network's inputs are no images with a known mean and std; "
      "leave it out");
}

std::string batch_dependence(const Model& model) {
  for (const MoEBlock& block : model.moe_blocks()) {
    const nn::Router& router = block.layer->router;
    const RouteOptions rule = router->evaluation_rule();
    const int64_t group = rule.group_size;
    const bool of_one_image = group > 0 && model.tokens_per_image() % group == 0;
    if (nn::is_batch_dependent(rule) && !of_one_image) return kSharedCapacity;
    if (router->options().evaluation_seed) return "routers draw noise by the place in a batch";
  }
  return "";
}

bool can_lift_capacity(const Model& model) {
  const std::vector<MoEBlock> blocks = model.moe_blocks();
  const auto tokens_choose = [](const MoEBlock& block) {
    return block.layer->options().rule.is_token_choice();
  };
  return !blocks.empty() && std::ranges::all_of(blocks, tokens_choose) &&
         !model.setting_paths().evaluation_capacity_factor.empty();
}

std::map<std::string, std::string> side_files(const Model& model, const ExportInfo& info) {
  const Json evaluation = {{"loss", info.loss.empty() ? Json() : Json(info.loss)},
                           {"batch_size", info.batch_size ? Json(*info.batch_size) : Json()}};
  Json config = model.config();
  if (const Json constants = model.constants(); !constants.is_null()) {
    config[kConstantsKey] = constants;
  }
  return {{"config.json", config.dump(2) + "\n"},
          {"evaluation.json", evaluation.dump(2) + "\n"},
          {"labels.json", Json(info.input.classes).dump(2) + "\n"},
          {"preprocess.json", document_of(info.input).dump(2) + "\n"}};
}

void export_safetensors(const Model& model, const fs::path& out, const ExportInfo& info) {
  check_new_weights(out, "export");
  if (is_one_file(out)) return write_one_file(model, out, info);
  StagedDirectory staged(out);
  write_tensors(staged.path() / kWeightsFile, state_of(model), {{"format", "pt"}});
  for (const auto& [name, text] : side_files(model, info)) write_atomic(staged.path() / name, text);
  staged.commit();
}

torch::jit::Module to_torchscript(const Model& model) {
  if (auto module = model.torchscript(script::Context())) return *std::move(module);
  fail_usage("export: models of the family '{}' have no TorchScript form; choose safetensors",
             model.config().value("name", std::string()));
}

void export_torchscript(const Model& model, const fs::path& file, const ExportInfo& info) {
  torch::jit::ExtraFilesMap extra;
  for (const auto& [name, text] : side_files(model, info)) extra[name] = text;
  AtomicFile out(file);  // Throws where there is no folder, which StagedDirectory would make.
  {
    const StagedDirectory beside(file);  // It is never committed, so that it goes away.
    const fs::path tensors = unique_sibling(beside.path() / ".");  // Messages call it `file`.
    write_one_file(model, tensors, info);
    extra[kWeightsFile] = read_text(tensors);
  }
  const auto write = [&](const void* bytes, size_t count) {
    out.write(std::span(static_cast<const std::byte*>(bytes), count));
    return count;
  };
  torch::jit::ExportModule(to_torchscript(model), write, extra);
  out.commit();
}

Registry<ExportFormat>& export_formats() {
  static Registry<ExportFormat> list(
      "format",
      {{"onnx",
        recorded_format("one file for ONNX Runtime (opset 20), written by Python", export_onnx)},
       {"pt2", recorded_format("one file of torch.export, which LibTorch runs without Python; "
                               "moesaic needs Python to write it",
                               export_pt2)},
       {"pytorch",
        {.description = "modeling.py of plain PyTorch, with weights, JSON files and a model card",
         .out_help = "new folder",
         .has_preprocessing = true,
         .check_out = [](const fs::path& out) { check_new_folder(out, "--out"); },
         .write = written_by(export_pytorch)}},
       {"safetensors",
        {.description = "weights and JSON files, readable without PyTorch",
         .out_help = "new folder, or new file that ends in .safetensors",
         .check_out = [](const fs::path& out) { check_new_weights(out, "--out"); },
         .write = written_by(export_safetensors)}},
       {"torchscript",
        {.description = "one file that PyTorch and LibTorch run without this library",
         .out_help = "new file",
         .check_out = [](const fs::path& out) { check_new_file(out, "--out"); },
         .write = written_by(export_torchscript)}}});
  return list;
}

}  // namespace moesaic
