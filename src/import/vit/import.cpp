// SPDX-License-Identifier: Apache-2.0
#include "moesaic/import/vit/import.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/schema.h"
#include "moesaic/import/vmoe/import.h"
#include "vit.h"

namespace moesaic {
namespace {

constexpr const char* kPickled = "a pickle is not read; save it as model.safetensors in Python";

/// Returns the file of tensors, or their index, that a path stands for.
fs::path weights_at(const fs::path& path) {
  if (!path_exists(path)) {
    for (const ReleasedCheckpoint& known : released_checkpoints()) {
      if (path != known.name) continue;
      fail_usage("{0}: no such file or folder; for the released checkpoint choose import vmoe {0}",
                 known.name);
    }
    fail_usage("{}: no such file or folder{}", path.string(), nearest_sibling(path));
  }
  if (!fs::is_directory(path)) {
    for (const char* end : {".bin", ".pt", ".pth"}) {
      if (path.extension() == end) fail_usage("{}: {}", path.string(), kPickled);
    }
    check_tensor_file(path, "a folder with model.safetensors or an index of such files");
    return path;
  }
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (path_exists(path / name)) return path / name;
  }
  const fs::path pickled = path / "pytorch_model.bin";
  if (path_exists(pickled)) fail_usage("{}: {}", pickled.string(), kPickled);
  fail_usage(
      "{}: no model.safetensors; give the folder that has it, or a .safetensors file of another "
      "name",
      path.string());
}

Checkpoint checkpoint_of(const ImportVitOptions& options, const ImportVitResult& result) {
  const Upcycling& upcycling = options.upcycling;
  Checkpoint checkpoint;
  checkpoint.config = {{"model", result.model}, {kInputKey, document_of(result.input)}};
  checkpoint.state = {{"imported",
                       {{"from", options.from.filename().string()},
                        {"dropped", result.dropped},
                        {"expert_noise", upcycling.noise},
                        {"seed", options.seed}}}};
  return checkpoint;
}

}  // namespace

ImportVitResult import_vit(const ImportVitOptions& options) {
  check_new_folder(options.out, "--out");
  const fs::path file = weights_at(options.from);
  vit::Tensors tensors(file);
  const vit::SideFiles beside = vit::side_files_in(file.parent_path());
  const vit::Network network = vit::network_of(tensors, beside, options);
  ImportVitResult result;
  result.notes = network.notes;
  result.input = vit::input_of(network.config, beside, result.notes);
  if (options.num_classes) result.input.classes.clear();  // They are those of the former head.
  const vit::Maker maker(tensors, network, options);
  result.from = file.string();
  result.out = options.out.string();
  result.model = to_json(network.config);
  result.num_tensors = tensors.count;
  result.dropped = tensors.dropped;
  Checkpoint checkpoint = checkpoint_of(options, result);
  checkpoint.model = maker.shapes();
  for (const auto& [unused, shape] : checkpoint.model) result.num_parameters += shape.numel();
  const auto make = [&](const std::string& name) { return maker.make(name); };
  save_checkpoint(options.out, checkpoint, make, options.progress);
  return result;
}

Json to_json(const ImportVitResult& result) {
  return {{"from", result.from},
          {"out", result.out},
          {"parameters", result.num_parameters},
          {"tensors", result.num_tensors},
          {"dropped", result.dropped},
          {"notes", result.notes},
          {"input", document_of(result.input)},
          {"model", result.model}};
}

std::string describe(const ImportVitResult& result) {
  const Json &model = result.model, &encoder = model.at("encoder"), &moe = encoder.at("moe");
  const auto line = [](const char* label, const std::string& text) {
    return fmt::format("  {:<12}{}\n", label, text);
  };
  std::string text = fmt::format("{}: {}\n", result.from, count_text(result.num_tensors, "tensor"));
  text +=
      line("network", fmt::format("{} blocks of width {}, {} heads, {} classes",
                                  encoder.at("num_layers").dump(), model.at("hidden_size").dump(),
                                  encoder.at("num_heads").dump(), model.at("num_classes").dump()));
  if (!moe.at("layers").empty()) {
    text += line("experts", fmt::format("{} in blocks {}, {} for each token",
                                        moe.at("num_experts").dump(), moe.at("layers").dump(),
                                        moe.at("router").at("num_selected_experts").dump()));
  }
  const PreprocessConfig& images = result.input.preprocess;
  text += line("images", fmt::format("{} x {}, {}", images.size.height, images.size.width,
                                     images.interpolation));
  if (!result.dropped.empty()) {
    text +=
        line("dropped", fmt::format("{}: {}", result.dropped.size(), quoted_names(result.dropped)));
  }
  for (const std::string& note : result.notes) text += line("note", note);
  return text + fmt::format("{}: {} parameters\n", result.out, result.num_parameters);
}

}  // namespace moesaic
