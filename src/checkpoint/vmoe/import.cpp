// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/vmoe/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/checkpoint/input.h"
#include "moesaic/checkpoint/vmoe/model_config.h"
#include "moesaic/config/document.h"
#include "moesaic/formats/safetensors.h"
#include "moesaic/models/vmoe/initialise.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Facts = std::vector<VMoEFact>;

bool fine_tunes(const ImportVMoEOptions& options) {
  return options.classes || options.image_size || !options.rules.empty();
}

Document open_config(const fs::path& path) {
  check_input_file(path);
  return Document::from_file(path);
}

VMoERules chosen_rules(const ImportVMoEOptions& options) {
  if (!options.rules.empty()) {
    const Document document = open_config(options.rules);
    const Value* inner = document.root().find("rules");
    return rules_from_value(inner == nullptr ? document.root() : *inner);
  }
  if (!fine_tunes(options)) return identity_rules();
  VMoERules rules = fine_tuning_rules();
  if (!options.classes) rules.erase(rules.begin());  // The first rule drops the head.
  return rules;
}

/// Returns the facts, none if rules rename the arrays.
Facts facts_of(const VMoEArrays& arrays, const ImportVMoEOptions& options) {
  const bool renamed = !options.rules.empty() && arrays.find("embedding/kernel") == nullptr;
  return renamed ? Facts{} : vmoe_facts(arrays);
}

/// Returns whether the representation layer is dropped for a new head, as in the released recipes.
bool drops_representation(const ImportVMoEOptions& options, const Value& model) {
  const Value* size = find_setting(model, "representation_size");
  return options.classes && options.rules.empty() && size != nullptr && size->to_json() == 0;
}

/// Returns the settings that may differ from what the arrays imply.
std::set<std::string> free_settings(const ImportVMoEOptions& options, const Value& model,
                                    const Facts& facts) {
  std::set<std::string> free;
  if (!options.rules.empty()) {
    for (const VMoEFact& fact : facts) free.insert(fact.key);
  }
  if (options.classes) free.insert("classes");
  if (options.image_size) free.insert("image_size");
  if (fine_tunes(options)) free.insert("name");
  if (drops_representation(options, model)) free.insert("representation_size");
  if (fine_tunes(options)) free.insert("encoder.moe.ensemble_size");
  return free;
}

VMoEModelConfig given_config(const ImportVMoEOptions& options, const std::string& from) {
  if (!options.model_config.empty()) {
    return vmoe_model_config(open_config(options.model_config).root());
  }
  return {Value::from_json(Json::object(), from), false, {}};
}

Value argument(const char* option, const Json& value) {
  return Value::from_json(value, fmt::format("argument '{} {}'", option, value.dump()));
}

int64_t whole_number_at(const Value& model, const std::string& key, int64_t otherwise) {
  const Value* value = find_setting(model, key);
  return value == nullptr ? otherwise : value->as_int("model." + key);
}

/// Returns the number of patches per image in the checkpoint's network, by its position embedding,
/// else by its configuration; 0 if it is unknown.
template <class PatchesOf>
int64_t source_patches(const Facts& facts, const Value* given_size, const PatchesOf& patches_of) {
  const auto told = std::ranges::find(facts, "image_size", &VMoEFact::key);
  if (told != facts.end() && told->patches != 0) return told->patches;
  if (given_size == nullptr) return 0;
  return patches_of(config_detail::read_sides(*given_size, "model.image_size", at_least(1)));
}

/// Scales group_size to the new number of tokens per image; a group keeps its number of images.
Value with_scaled_groups(const Value& model, const Facts& facts, const Value* given_size,
                         const Sides& image, std::vector<std::string>& notes) {
  const Value* group = find_setting(model, "encoder.moe.group_size");
  const Value* patch_size = model.find("patch_size");
  const bool as_given =
      given_size != nullptr && given_size->to_json() == config_detail::write_sides(image);
  if (group == nullptr || patch_size == nullptr || as_given) return model;
  const Value* classifier = find_setting(model, "classifier");
  const bool token = classifier == nullptr || classifier->to_json() == "token";
  const Sides patch = config_detail::read_sides(*patch_size, "model.patch_size", at_least(1));
  const auto patches_of = [&](const Sides& sides) {
    return (sides.height / patch.height) * (sides.width / patch.width);
  };
  const int64_t source = source_patches(facts, given_size, patches_of), patches = patches_of(image);
  if (source == 0) return model;
  const int64_t members = whole_number_at(model, "encoder.moe.ensemble_size", 1);
  const int64_t from = (source + (token ? 1 : 0)) * members;
  const int64_t to = (patches + (token ? 1 : 0)) * members;
  const int64_t size = group->as_int("model.encoder.moe.group_size");
  if (size == 0 || from == 0 || from == to || size % from != 0) return model;
  const int64_t images = size / from;
  notes.push_back(fmt::format("encoder.moe.group_size {} became {}: {} {} of {} tokens", size,
                              images * to, images, images == 1 ? "image" : "images", to));
  return with_setting(model, "encoder.moe.group_size",
                      Value::from_json(images * to, group->where()));
}

/// Returns the configuration of the network to create.
Value target_model(const ImportVMoEOptions& options, const VMoEModelConfig& given,
                   const Facts& facts, const std::string& from, std::vector<std::string>& notes) {
  const Value* given_size = find_setting(given.model, "image_size");
  Value model = with_facts(given, facts, from, free_settings(options, given.model, facts));
  if (options.classes) model = model.with("classes", argument("--classes", *options.classes));
  if (options.image_size) {
    const Json size = config_detail::write_sides(*options.image_size);
    model = model.with("image_size", argument("--image-size", size));
    model = with_scaled_groups(model, facts, given_size, *options.image_size, notes);
  }
  return model;
}

/// Checks that no array is missing: without fine-tuning rules, the checkpoint is the whole network.
void check_complete(const VMoEPlan& plan, const std::string& from) {
  if (plan.fresh.empty()) return;
  fail("{}: no array '{}', which the network needs{}", from, plan.fresh.front(),
       plan.fresh.size() == 1 ? "" : fmt::format(", nor {} others", plan.fresh.size() - 1));
}

uint64_t bytes_of(const VMoETensor& tensor) {
  uint64_t count = sizeof(float);
  for (const int64_t size : tensor.shape) count *= static_cast<uint64_t>(size);
  return count;
}

FileContent write_model(const fs::path& path, const VMoEInitialiser& initialiser,
                        const ImportVMoEOptions& options) {
  std::map<std::string, const VMoETensor*> by_name;
  std::vector<safetensors::Item> items;
  uint64_t done = 0, total = 0;
  for (const VMoETensor& tensor : initialiser.tensors()) {
    by_name[tensor.name] = &tensor;
    items.push_back({tensor.name, "F32", tensor.shape, {}});
    total += bytes_of(tensor);
  }
  at::Tensor current;
  const auto next = [&](const safetensors::Item& item) {
    if (options.progress) options.progress(done, total);
    current.reset();  // Freed before the next tensor is allocated.
    current = initialiser.tensor(*by_name.at(item.name));
    done += current.nbytes();
    return std::span(static_cast<const std::byte*>(current.const_data_ptr()), current.nbytes());
  };
  FileContent content = safetensors::write_streamed(path, std::move(items), next);
  if (options.progress) options.progress(total, total);
  return content;
}

/// Returns the stored dtypes of the arrays that were copied with only their dtype converted.
std::map<std::string, std::string> stored_dtypes(const VMoEInitialiser& initialiser) {
  std::map<std::string, std::string> dtypes;
  for (const VMoETensor& tensor : initialiser.tensors()) {
    for (const VMoEArray& array : tensor.arrays) {
      const auto move = initialiser.plan().moves.find(array.name);
      const bool same = move != initialiser.plan().moves.end() && !move->second.transforms(array);
      if (same && move->second.source.dtype != "float32") {
        dtypes[array.name] = move->second.source.dtype;
      }
    }
  }
  return dtypes;
}

/// Adds a note on float64 arrays that were rounded to float32.
void note_rounded(const VMoEInitialiser& initialiser, std::vector<std::string>& notes) {
  std::vector<std::string> names;
  for (const auto& [name, move] : initialiser.plan().moves) {
    if (move.source.dtype == "float64") names.push_back(name);
  }
  if (names.empty()) return;
  const bool one = names.size() == 1;
  notes.push_back(fmt::format("{} of float64 {} rounded to float32: {}{}",
                              one ? "an array" : fmt::format("{} arrays", names.size()),
                              one ? "is" : "are", names.front(), one ? "" : ", ..."));
}

int64_t numbers_in(const std::vector<VMoETensor>& tensors) {
  uint64_t bytes = 0;
  for (const VMoETensor& tensor : tensors) bytes += bytes_of(tensor);
  return static_cast<int64_t>(bytes / sizeof(float));
}

std::string counted(const char* label, const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  if (names.empty()) return "";
  const std::vector<std::string> first(
      names.begin(), names.begin() + static_cast<long>(std::min(names.size(), kShown)));
  return fmt::format("  {:<12}{}: {}{}\n", label, names.size(), fmt::join(first, ", "),
                     names.size() > kShown ? ", ... (all: --json)" : "");
}

/// Returns the preprocessing of the reference configurations: images are resized to the network's
/// size, as they are stored, with values in [-1, 1].
PreprocessConfig preprocess_of(const VMoEConfig& config) {
  PreprocessConfig preprocess;
  preprocess.values = "symmetric";
  preprocess.orientation = "stored";
  preprocess.size = config.image_size;
  return preprocess;
}

InputSpec input_of_import(const VMoEConfig& config, const PreprocessConfig& preprocess) {
  InputSpec input;
  input.input_size = {config.channels, config.image_size.height, config.image_size.width};
  input.preprocess = preprocess;
  input.rescale_factor = 1.0 / 255.0;
  input.mean = input.std = std::vector<double>(static_cast<size_t>(config.channels), 0.5);
  input.channel_order = channel_order(config.channels);
  return input;
}

}  // namespace

ImportVMoEResult import_vmoe(const ImportVMoEOptions& options) {
  check_new_folder(options.out, "--out");
  ImportVMoEResult result;
  VMoERules rules = chosen_rules(options);
  const fs::path prefix = vmoe_prefix(options.prefix);
  const VMoEModelConfig given = given_config(options, prefix.string());
  if (drops_representation(options, given.model)) rules.insert(rules.begin(), {"^pre_logits/", ""});
  const VMoECheckpointArrays arrays(prefix);
  const Facts facts = facts_of(arrays, options);
  const Value model = target_model(options, given, facts, arrays.from(), result.notes);
  const auto config = parse<VMoEConfig>(model, "model");
  VMoEInitialiser initialiser(arrays, config, rules, options.rules.string());
  if (!fine_tunes(options)) check_complete(initialiser.plan(), arrays.from());
  initialiser.draw_fresh(config, options.seed);
  note_rounded(initialiser, result.notes);

  result.from = arrays.from();
  result.out = options.out.string();
  result.model = to_json(config);
  result.parameters = numbers_in(initialiser.tensors());
  result.arrays = static_cast<int64_t>(arrays.entries().size());
  result.shards = arrays.reader().shard_count();
  result.branch = arrays.branch();
  result.others = static_cast<int64_t>(arrays.others());
  result.transformed = initialiser.transformed();
  result.fresh = initialiser.plan().fresh;
  result.dropped = initialiser.plan().dropped;
  result.copied = static_cast<int64_t>(initialiser.plan().moves.size() - result.transformed.size());
  result.unused = given.unused;
  result.preprocess = preprocess_of(config);

  Checkpoint checkpoint;
  checkpoint.config = {{"model", result.model},
                       {kInputKey, document_of(input_of_import(config, result.preprocess))}};
  const auto dtypes = stored_dtypes(initialiser);
  if (!dtypes.empty()) checkpoint.config["array_dtypes"] = dtypes;
  checkpoint.state = {{"imported",
                       {{"from", prefix.filename().string()},
                        {"copied", result.copied},
                        {"transformed", result.transformed},
                        {"fresh", result.fresh},
                        {"dropped", result.dropped}}}};
  save_checkpoint(options.out, checkpoint,
                  [&](const fs::path& path) { return write_model(path, initialiser, options); });
  return result;
}

Json to_json(const ImportVMoEResult& result) {
  return {{"from", result.from},
          {"out", result.out},
          {"parameters", result.parameters},
          {"arrays", result.arrays},
          {"shards", result.shards},
          {"branch", result.branch},
          {"other_arrays", result.others},
          {"copied", result.copied},
          {"transformed", result.transformed},
          {"fresh", result.fresh},
          {"dropped", result.dropped},
          {"unused_settings", result.unused},
          {"notes", result.notes},
          {"preprocess", to_json(result.preprocess)},
          {"model", result.model}};
}

std::string describe(const ImportVMoEResult& result) {
  std::string text =
      fmt::format("{}: {} arrays in {} {}{}\n", result.from, result.arrays, result.shards,
                  result.shards == 1 ? "shard" : "shards",
                  result.branch.empty() ? "" : fmt::format(", under '{}'", result.branch));
  text += fmt::format("  {:<12}{}\n", "copied", result.copied);
  text += counted("transformed", result.transformed);
  text += counted("fresh", result.fresh);
  text += counted("dropped", result.dropped);
  text += counted("not used", result.unused);
  text += fmt::format(
      "  {:<12}{}values from -1 to 1, as the reference's recipes have them\n", "images",
      fmt::format("{} x {}, ", result.preprocess.size.height, result.preprocess.size.width));
  for (const std::string& note : result.notes) text += fmt::format("  {:<12}{}\n", "note", note);
  return text + fmt::format("{}: {} parameters\n", result.out, result.parameters);
}

}  // namespace moesaic
