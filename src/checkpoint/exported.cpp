// SPDX-License-Identifier: Apache-2.0
// What `moesaic export` writes, read as a checkpoint.
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/serialization/import_read.h>

#include <array>

#include "manifest.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/checkpoint/program.h"
#include "moesaic/formats/archive.h"
#include "moesaic/models/registry.h"

namespace moesaic {
namespace {

using Texts = std::map<std::string, std::string>;

constexpr std::array kNames = {"config", "labels", "preprocess", "evaluation"};

Texts texts_beside(const fs::path& folder) {
  Texts texts;
  for (const char* name : kNames) {
    const fs::path file = folder / (std::string(name) + ".json");
    if (path_exists(file)) texts[name] = read_text(file, kMaxListBytes, "a part of an export");
  }
  return texts;
}

using Archive = caffe2::serialize::PyTorchStreamReader;

Texts texts_in_archive(Archive& reader, const fs::path& file) {
  Texts texts;
  for (const char* name : kNames) {
    const std::string record = "extra/" + std::string(name) + ".json";
    if (!reader.hasRecord(record)) continue;
    if (reader.getRecordSize(record) > kMaxListBytes)
      fail("{}: {} has more than {} bytes", file.string(), record, kMaxListBytes);
    const auto [data, size] = reader.getRecord(record);
    texts[name] = std::string(static_cast<const char*>(data.get()), size);
  }
  return texts;
}

/// Adds the tensors of a module and of those within it, under the names of a state dict.
void add_tensors(const c10::IValue& value, const std::string& name, int depth, TensorMap& tensors) {
  constexpr int kMaxDepth = 32;  // A stranger may have written it.
  if (value.isTensor()) tensors.emplace(name, value.toTensor());
  if (!value.isObject() || depth > kMaxDepth) return;
  const c10::IValue& members = value.toObject()->getSlot(0);
  if (!members.isGenericDict()) return;
  for (const auto& member : members.toGenericDict()) {
    if (!member.key().isString()) continue;
    const std::string& key = member.key().toStringRef();
    add_tensors(member.value(), name.empty() ? key : name + "." + key, depth + 1, tensors);
  }
}

/// Reads the tensors of an archive. One class stands for all of its classes, whose code, which
/// would run while it is loaded, is not read.
TensorMap tensors_in_archive(Archive& reader) {
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const auto any = c10::ClassType::create("__torch__.Any", unit, /*is_module=*/true);
  any->addAttribute("members", c10::AnyType::get());
  const auto type = [&](const c10::QualifiedName&) { return c10::StrongTypePtr(unit, any); };
  const auto make = [](const c10::StrongTypePtr& made, const c10::IValue& members) {
    auto object = c10::ivalue::Object::create(made, 1);
    object->setSlot(0, members);
    return object;
  };
  TensorMap tensors;
  add_tensors(torch::jit::readArchiveAndTensors("data", "", "", type, make, at::kCPU, reader), "",
              0, tensors);
  return tensors;
}

/// Returns a part of an export, null where it is missing. Throws Error (failure) where its file is
/// in the place of another.
Json parsed(const Texts& texts, const std::string& name, const fs::path& from) {
  const auto text = texts.find(name);
  if (text == texts.end()) return {};
  const Value value = parse_stored(text->second, part_of_export(from, name), kMaxListBytes);
  with_errors_as_failures([&] {
    name == "labels" ? void(value.items(name)) : void(value.members(name));
    if (name == "preprocess") value.at("input_size");
  });
  return value.to_json();
}

/// Completes what version 0.2.0 and before wrote, which told size, mean and std only.
void complete_input(Json& input, const Json& labels, const fs::path& from) {
  if (input.contains("images") || !input.contains("input_size")) return;
  input["images"] = !input.value("rescale_factor", Json()).is_null();
  const Json& size = input["input_size"];
  const bool known = size.is_array() && !size.empty() && size[0].is_number_integer();
  if (input["images"] == true && known) input["channel_order"] = channel_order(size[0]);
  input["classes"] = labels;
  if (input["images"] == false) return;
  log_warning(
      "{}: does not store crop, interpolation and antialias (an older version wrote it): "
      "the whole image, bilinear with antialias, is assumed",
      from.string());
}

/// Returns the texts as the configuration of a checkpoint, which training would have written.
Json config_of(const Texts& texts, const fs::path& from) {
  Json config = {{"model", parsed(texts, "config", from)}};
  if (config["model"].is_object()) config["model"].erase(kConstantsKey);
  const Json labels = parsed(texts, "labels", from);
  const Json evaluation = parsed(texts, "evaluation", from);
  Json input = parsed(texts, "preprocess", from);
  if (input.is_object()) {
    complete_input(input, labels, from);
    const bool found = input.value("dataset", Json()).is_string();
    if (found && input.value("listed", Json()) != false) config["data"] = input["dataset"];
    config[kInputKey] = std::move(input);
  }
  if (!evaluation.is_object()) return config;
  const Json phase = Json::object({{"loss", evaluation.value("loss", Json())}});
  config["run"] = Json::object({{"phases", Json::array({phase})},
                                {"evaluate_batch_size", evaluation.value("batch_size", Json())}});
  return config;
}

/// Reads what an archive says of its network and, where `tensors` are wanted, these. No code is
/// run, but LibTorch's unpickler, which was not made for what a stranger writes, reads tensors.
Checkpoint load_archive(const fs::path& file, bool tensors) {
  Checkpoint checkpoint{.state = Json::object(), .folder = file};
  try {
    Archive reader(file.string());
    checkpoint.config = config_of(texts_in_archive(reader, file), file);
    if (tensors) checkpoint.model = tensors_in_archive(reader);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    fail("{}: a corrupt archive: {}", file.string(), one_line(text.substr(0, text.find(". "))));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail("{}: a corrupt archive: {}", file.string(), error.what());
  }
  if (!tensors) return checkpoint;
  // Its module also has tensors that the network makes of its settings.
  const auto shape = build_meta_model(
      Value::from_json(checkpoint.config.at("model"), file.string() + " (config.json)"));
  const TensorMap state = state_of(*shape);
  std::erase_if(checkpoint.model, [&](const auto& item) { return !state.contains(item.first); });
  return checkpoint;
}

/// Throws Error (usage) for a program that is none of ours, or is not to be run.
void check_program(const fs::path& file, const LoadOptions& options) {
  if (!is_in_zip(file, "extra/config.json")) {
    fail_usage(
        "{}: a .pt2 file of another program, without a model configuration; give a file of "
        "'moesaic export'",
        file.string());
  }
  if (!options.accept_program) {
    fail_usage(
        "{}: a program (.pt2), which only eval, predict and bench can use; give the run, or an "
        "export to safetensors",
        file.string());
  }
}

}  // namespace

bool is_torchscript(const fs::path& file) {
  return fs::is_regular_file(status_of(file)) && is_zip(MappedFile(file).bytes());
}

bool is_pickled(const fs::path& file) {
  return is_torchscript(file) && !is_in_zip(file, safetensors::kArchiveMember);
}

bool is_export(const fs::path& path) {
  if (!fs::is_directory(status_of(path))) {
    return path.extension() == ".safetensors" || is_index(path) || is_torchscript(path);
  }
  // A checkpoint that lost its manifest has no preprocess.json.
  return fs::exists(status_of(tensors_path(path, kModelFile))) &&
         fs::exists(status_of(path / "preprocess.json"));
}

Checkpoint load_export(const fs::path& path, const LoadOptions& options) {
  if (is_exported_program(path)) {
    check_program(path, options);
    return load_archive(path, /*tensors=*/false);
  }
  if (is_pickled(path)) {
    if (is_in_zip(path, "data.pkl") && !is_in_zip(path, "constants.pkl")) {
      fail_usage(
          "{}: a pickle of PyTorch (torch.save), which is not read; save the state_dict() by "
          "safetensors.torch.save_file(), then run moesaic import vit FOLDER",
          path.string());
    }
    if (!is_in_zip(path, "extra/config.json")) {
      fail_usage(
          "{}: a TorchScript file of another program, without a model configuration, so that "
          "--trust does not help; give a file of 'moesaic export', a run or a checkpoint",
          path.string());
    }
    if (options.trust) return load_archive(path, options.load_model);
    fail_usage(
        "{0}: a TorchScript file without the safetensors that 'moesaic export' adds; if you trust "
        "its author, give --trust, or convert it: moesaic export {0} --trust "
        "--format safetensors --out FOLDER",
        path.string());
  }
  Checkpoint checkpoint{.state = Json::object(), .folder = path};
  const fs::path weights = weights_file(checkpoint);
  const Texts texts = weights == path ? open_tensors(path).metadata : texts_beside(path);
  if (!texts.contains("config") && path_exists(path.parent_path() / "config.json")) {
    fail_usage("{}: a file of weights without a model configuration; give its folder",
               path.string());
  }
  if (!texts.contains("config")) {
    if (weights != path) fail("{}: the file is missing", part_of_export(path, "config"));
    fail_usage("{}: its metadata has no model configuration under 'config'", path.string());
  }
  checkpoint.config = config_of(texts, path);
  if (options.load_model) checkpoint.model = read_weights(weights, options.mmap);
  return checkpoint;
}

std::string part_of_export(const fs::path& path, const std::string& name) {
  const std::string file = name + ".json";
  return fs::is_directory(status_of(path)) ? (path / file).string()
                                           : fmt::format("{} ({})", path.string(), file);
}

fs::path weights_file(const Checkpoint& checkpoint) {
  const bool one_file = fs::is_regular_file(status_of(checkpoint.folder));
  return one_file ? checkpoint.folder : tensors_path(checkpoint.folder, kModelFile);
}

}  // namespace moesaic
