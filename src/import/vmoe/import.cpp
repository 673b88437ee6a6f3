// SPDX-License-Identifier: Apache-2.0
#include "moesaic/import/vmoe/import.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/path.h"
#include "moesaic/checkpoint/store.h"
#include "moesaic/config/document.h"
#include "moesaic/data/fetch_file.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"
#include "reference.h"

namespace moesaic {
namespace {

using Facts = std::vector<VMoEFact>;

/// Makes the target's tensors one at a time, so that at most two of them are in memory at once.
class Initialiser {
 public:
  Initialiser(const VMoEArrays& arrays, const VMoEConfig& target, const VMoERules& rules,
              const std::string& rules_from)
      : tensors(vmoe_tensors(target)),
        plan(plan_moves(arrays.entries, tensors, rules, arrays.from, rules_from)),
        arrays_(arrays),
        target_(target) {}

  const std::vector<VMoETensor> tensors;  ///< Those of the unpruned network.
  const VMoEPlan plan;

  /// Returns the shapes in the target, which may be pruned, on the meta device.
  TensorMap shapes() const {
    TensorMap shapes;
    for (const VMoETensor& tensor : tensors) {
      std::vector<int64_t> shape = tensor.shape;
      if (const auto* kept = kept_experts_of(target_, tensor.name)) shape[0] = std::ssize(*kept);
      shapes[tensor.name] = at::empty(shape, at::device(at::kMeta).dtype(at::kFloat));
    }
    return shapes;
  }

  /// Draws the arrays that no rule maps to, with the values of a new network of this seed.
  void draw_fresh(VMoEConfig target, uint64_t seed) {
    if (plan.fresh.empty()) return;
    target.encoder.moe.kept_experts.clear();  // make() leaves experts out.
    const bool head_only = std::ranges::all_of(
        plan.fresh, [](const std::string& name) { return name.starts_with("head/"); });
    if (head_only) {  // It does not depend on the blocks.
      target.name = kVMoE;
      target.encoder.num_layers = target.encoder.mlp_dim = 1;
      target.encoder.moe = {};
    }
    const TensorMap state =
        state_of(*build_model(Value::from_json(to_json(target), "model"), seed));
    for (const VMoETensor& tensor : tensors) {
      const bool all_mapped = std::ranges::all_of(
          tensor.arrays, [&](const VMoEArray& array) { return plan.moves.contains(array.name); });
      if (!all_mapped) fresh_[tensor.name] = state.at(tensor.name).clone();
    }
  }

  /// Returns the tensor, float32 and contiguous.
  at::Tensor make(const std::string& name) const {
    const torch::NoGradGuard no_grad;
    const VMoETensor& tensor = *std::ranges::find(tensors, name, &VMoETensor::name);
    const at::Tensor whole = tensor_of_arrays(tensor, [&](const VMoEArray& array) {
      const auto move = plan.moves.find(array.name);
      if (move != plan.moves.end()) {
        return moved(move->second, arrays_.read(move->second.source), array);
      }
      return array_of_tensor(tensor, static_cast<size_t>(&array - tensor.arrays.data()),
                             fresh_.at(tensor.name));
    });
    const auto* kept = kept_experts_of(target_, name);
    return kept == nullptr ? whole : whole.index_select(0, at::tensor(*kept, at::kLong));
  }

 private:
  const VMoEArrays& arrays_;
  const VMoEConfig& target_;
  TensorMap fresh_;  ///< Tensors with an array that is drawn.
};

bool fine_tunes(const ImportVMoEOptions& options) {
  return options.num_classes || options.image_size || !options.rules.empty();
}

Document open_config(const fs::path& path) {
  check_input_file(path);
  return Document::from_file(path);
}

/// `from` names the files.
VMoEModelConfig given_config(const ImportVMoEOptions& options, const std::string& from) {
  if (!options.model_config.empty()) {
    return vmoe_model_config(open_config(options.model_config).root());
  }
  if (!options.model.is_null()) return vmoe_model_config(Value::from_json(options.model, from));
  return {.model = Value::from_json(Json::object(), from)};
}

VMoERules chosen_rules(const ImportVMoEOptions& options) {
  if (!options.rules.empty()) {
    const Document document = open_config(options.rules);
    const Value* inner = document.root().find("rules");
    return rules_from_value(inner == nullptr ? document.root() : *inner);
  }
  if (!fine_tunes(options)) return identity_rules();
  VMoERules rules = fine_tuning_rules();
  if (!options.num_classes) rules.erase(rules.begin());  // The first rule drops the head.
  return rules;
}

/// Returns whether the representation layer is dropped for a new head, as in the released recipes.
bool drops_representation(const ImportVMoEOptions& options, const Value& model) {
  return options.num_classes && options.rules.empty() &&
         setting_is(model, "representation_size", 0);
}

/// Returns the settings that may differ from what the arrays imply.
std::set<std::string> free_settings(const ImportVMoEOptions& options, const Value& model,
                                    const Facts& facts) {
  std::set<std::string> free;
  if (!options.rules.empty()) {
    for (const VMoEFact& fact : facts) free.insert(fact.key);
  }
  if (options.num_classes) free.insert("num_classes");
  if (options.image_size) free.insert("image_size");
  if (fine_tunes(options)) free.insert({"name", "encoder.moe.ensemble_size"});
  if (drops_representation(options, model)) free.insert("representation_size");
  return free;
}

Value argument(const char* option, const Json& value) {
  return Value::from_json(value, fmt::format("argument '{} {}'", option, value.dump()));
}

/// Scales group_size to the new number of tokens per image; a group keeps its number of images.
Value with_scaled_groups(const Value& model, const Facts& facts, const Value* given_size,
                         const Value& image, std::vector<std::string>& notes) {
  const Value* group = find_setting(model, "encoder.moe.group_size");
  const Value* patch_size = model.find("patch_size");
  const bool as_given = given_size != nullptr && given_size->to_json() == image.to_json();
  if (group == nullptr || patch_size == nullptr || as_given) return model;
  // The position embedding tells the patches of the checkpoint's network, else its configuration.
  const auto told = std::ranges::find(facts, "image_size", &VMoEFact::key);
  int64_t source = told == facts.end() ? 0 : told->patches;
  if (source == 0 && given_size != nullptr) source = patches_of(*given_size, *patch_size);
  if (source == 0) return model;
  const Value* classifier = model.find("classifier");
  const int64_t token = classifier == nullptr || classifier->to_json() == "token" ? 1 : 0;
  const Value* ensemble = find_setting(model, "encoder.moe.ensemble_size");
  const int64_t members =
      ensemble == nullptr ? 1 : ensemble->as_int("model.encoder.moe.ensemble_size");
  const int64_t from = (source + token) * members;
  const int64_t to = (patches_of(image, *patch_size) + token) * members;
  const int64_t size = group->as_int("model.encoder.moe.group_size");
  if (size == 0 || from == 0 || from == to || size % from != 0) return model;
  const int64_t images = size / from;
  notes.push_back(fmt::format("encoder.moe.group_size {} became {}: {} of {} tokens", size,
                              images * to, count_text(images, "image"), to));
  return with_setting(model, "encoder.moe.group_size",
                      Value::from_json(images * to, group->where()));
}

/// Returns the configuration of the network to create.
Value target_model(const ImportVMoEOptions& options, const VMoEModelConfig& given,
                   const Facts& facts, const std::string& from, std::vector<std::string>& notes) {
  Value model = with_facts(given, facts, from, free_settings(options, given.model, facts));
  if (options.num_classes)
    model = model.with("num_classes", argument("--classes", *options.num_classes));
  if (!options.image_size) return model;
  const Value image = argument("--image-size", config_detail::write_size2d(*options.image_size));
  return with_scaled_groups(model.with("image_size", image), facts, given.model.find("image_size"),
                            image, notes);
}

/// Throws Error (usage) for a pruned network that cannot come from arrays of the reference.
void check_pruning(const Value& model, const VMoEMoeConfig& moe) {
  const bool removes = std::ranges::any_of(moe.kept_experts, [&](const auto& block) {
    return std::ssize(block.second) < moe.num_experts;
  });
  if (!removes || (!moe.mean_replacement && moe.merged_into.empty())) return;
  const std::string key =
      moe.mean_replacement ? "encoder.moe.mean_replacement" : "encoder.moe.merged_into";
  const Value* given = find_setting(model, key);
  fail_usage("{}: a V-MoE of the reference has no '{}'; leave it out",
             (given == nullptr ? model : *given).where(), key);
}

/// Adds a note on the experts that the target does not keep.
void note_pruned(const VMoEMoeConfig& moe, std::vector<std::string>& notes) {
  for (const auto& [block, kept] : moe.kept_experts) {
    if (std::ssize(kept) == moe.num_experts) continue;
    notes.push_back(fmt::format("block {} has {} of {} experts, as encoder.moe.kept_experts says",
                                block, kept.size(), moe.num_experts));
  }
}

/// Returns the stored dtypes of the arrays that were copied with only their dtype converted.
std::map<std::string, std::string> stored_dtypes(const VMoEPlan& plan) {
  std::map<std::string, std::string> dtypes;
  for (const auto& [name, move] : plan.moves) {
    if (!move.transforms && move.source.dtype != "float32") dtypes[name] = move.source.dtype;
  }
  return dtypes;
}

/// Adds a note on float64 arrays that were rounded to float32.
void note_rounded(const VMoEPlan& plan, std::vector<std::string>& notes) {
  std::vector<std::string> names;
  for (const auto& [name, move] : plan.moves) {
    if (move.source.dtype == "float64") names.push_back(name);
  }
  if (names.empty()) return;
  const bool one = names.size() == 1;
  notes.push_back(fmt::format("{} of float64 {} rounded to float32: {}{}",
                              one ? "an array" : fmt::format("{} arrays", names.size()),
                              one ? "is" : "are", names.front(), one ? "" : ", ..."));
}

std::string counted(const char* label, const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  if (names.empty()) return "";
  const auto first = std::span(names).first(std::min(names.size(), kShown));
  return fmt::format("  {:<12}{}: {}{}\n", label, names.size(), fmt::join(first, ", "),
                     names.size() > kShown ? ", ... (all: --json)" : "");
}

/// Returns what the reference's configurations do to images: they are resized to the network's
/// size, as they are stored, with values in [-1, 1].
InputSpec input_of_import(const VMoEConfig& config) {
  InputSpec input;
  input.input_size = {config.channels, config.image_size.height, config.image_size.width};
  input.preprocess.values = "symmetric";
  input.preprocess.orientation = "stored";
  input.preprocess.size = config.image_size;
  input.rescale_factor = 1.0 / 255.0;
  input.mean = input.std = std::vector<double>(static_cast<size_t>(config.channels), 0.5);
  input.channel_order = channel_order(config.channels);
  return input;
}

Document released_list() {
  return Document::from_file(resource("checkpoints/released.json"));
}

/// Returns whether a name is that of something here, of which import_vmoe() says what is wrong.
bool is_here(const std::string& name) {
  return name.find('/') != name.npos || !prefix_of_part(name).empty() || path_exists(name) ||
         path_exists(name + ".index");
}

/// Fetches what is not yet in the cache, first the index, which says how many shards there are.
void fetch(const std::string& address, const fs::path& prefix) {
  const auto get = [&](const fs::path& place, uint64_t max_bytes = 0) {
    const std::string name = place.filename().string();
    if (path_exists(place)) return;  // Also where a cache can only be read.
    fetch_file({.url = address + name, .path = place, .max_bytes = max_bytes, .label = name});
  };
  const fs::path index = vmoe_checkpoint::index_path(prefix);
  try {
    get(index, vmoe_checkpoint::kMaxIndexBytes);
    const int64_t count = vmoe_checkpoint::shard_count(prefix);
    for (int64_t i = 0; i < count; ++i) get(vmoe_checkpoint::shard_path(prefix, i, count));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}; or put {} and the files .data-* beside it by hand "
                                          "into {}",
                                          error.what(), index.filename().string(),
                                          prefix.parent_path().string()));
  }
}

}  // namespace

ImportVMoEResult import_vmoe(const ImportVMoEOptions& options) {
  check_new_folder(options.out, "--out");
  ImportVMoEResult result;
  VMoERules rules = chosen_rules(options);
  const fs::path prefix = vmoe_prefix(options.prefix);
  const VMoEModelConfig given = given_config(options, prefix.string());
  if (drops_representation(options, given.model)) rules.insert(rules.begin(), {"^pre_logits/", ""});
  const VMoEFileArrays arrays = arrays_of_files(prefix);
  // Rules may rename the arrays, which then tell nothing.
  const bool renamed = !options.rules.empty() && arrays.find("embedding/kernel") == nullptr;
  const Facts facts = renamed ? Facts{} : vmoe_facts(arrays);
  const Value model = target_model(options, given, facts, arrays.from, result.notes);
  const auto config = parse<VMoEConfig>(model, "model");
  check_pruning(model, config.encoder.moe);
  Initialiser initialiser(arrays, config, rules, options.rules.string());
  const VMoEPlan& plan = initialiser.plan;
  if (!fine_tunes(options) && !plan.fresh.empty()) {  // The checkpoint is the whole network.
    fail("{}: no array '{}', which the network needs{}", arrays.from, plan.fresh.front(),
         plan.fresh.size() == 1 ? "" : fmt::format(", nor {} others", plan.fresh.size() - 1));
  }
  initialiser.draw_fresh(config, options.seed);
  note_rounded(plan, result.notes);
  note_pruned(config.encoder.moe, result.notes);

  const InputSpec input = input_of_import(config);
  result.from = arrays.from;
  result.out = options.out.string();
  result.model = to_json(config);
  result.num_arrays = static_cast<int64_t>(arrays.entries.size());
  result.num_shards = arrays.shards;
  result.branch = arrays.branch;
  result.num_other_arrays = arrays.others;
  result.num_copied = static_cast<int64_t>(plan.moves.size() - plan.transformed.size());
  result.transformed = plan.transformed;
  result.fresh = plan.fresh;
  result.dropped = plan.dropped;
  result.unused = given.unused;
  result.preprocess = input.preprocess;

  Checkpoint checkpoint;
  checkpoint.config = {{"model", result.model}, {kInputKey, document_of(input)}};
  const auto dtypes = stored_dtypes(plan);
  if (!dtypes.empty()) checkpoint.config["array_dtypes"] = dtypes;
  checkpoint.state = {{"imported",
                       {{"from", prefix.filename().string()},
                        {"copied", result.num_copied},
                        {"transformed", result.transformed},
                        {"fresh", result.fresh},
                        {"dropped", result.dropped}}}};
  checkpoint.model = initialiser.shapes();
  for (const auto& [unused, shape] : checkpoint.model) result.num_parameters += shape.numel();
  const auto make = [&](const std::string& name) { return initialiser.make(name); };
  save_checkpoint(options.out, checkpoint, make, options.progress);
  return result;
}

Json to_json(const ImportVMoEResult& result) {
  return {{"from", result.from},
          {"out", result.out},
          {"parameters", result.num_parameters},
          {"arrays", result.num_arrays},
          {"shards", result.num_shards},
          {"branch", result.branch},
          {"other_arrays", result.num_other_arrays},
          {"copied", result.num_copied},
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
      fmt::format("{}: {} arrays in {}{}\n", result.from, result.num_arrays,
                  count_text(result.num_shards, "shard"),
                  result.branch.empty() ? "" : fmt::format(", under '{}'", result.branch));
  text += fmt::format("  {:<12}{}\n", "copied", result.num_copied);
  text += counted("transformed", result.transformed);
  text += counted("fresh", result.fresh);
  text += counted("dropped", result.dropped);
  text += counted("not used", result.unused);
  const Size2d& size = result.preprocess.size;
  text +=
      fmt::format("  {:<12}{} x {}, values from -1 to 1, as the reference's recipes have them\n",
                  "images", size.height, size.width);
  for (const std::string& note : result.notes) text += fmt::format("  {:<12}{}\n", "note", note);
  return text + fmt::format("{}: {} parameters\n", result.out, result.num_parameters);
}

std::vector<ReleasedCheckpoint> released_checkpoints() {
  const Document list = released_list();
  std::vector<ReleasedCheckpoint> checkpoints;
  for (const Value& item : list.root().at("checkpoints").items()) {
    checkpoints.push_back({item.at("name").as_string(), item.at("about").as_string(),
                           list.root().at("licence").as_string(), item.at("bytes").as_int()});
  }
  return checkpoints;
}

void fetch_released(ImportVMoEOptions& options) {
  const std::string name = options.prefix.string();
  if (name.find("://") != name.npos) {
    if (const std::string problem = url_problem(name); !problem.empty()) fail_usage("{}", problem);
    fail_usage("'{}': an address is not read; name one of 'moesaic list checkpoints'", name);
  }
  if (is_here(name)) return;
  const Document list = released_list();
  std::vector<std::string> names;
  for (const Value& item : list.root().at("checkpoints").items()) {
    names.push_back(item.at("name").as_string());
    if (names.back() != name) continue;
    options.prefix = download_folder("checkpoints") / name;
    if (options.model_config.empty()) options.model = item.at("model").to_json();
    const Value* const size = item.find("image_size");
    if (size != nullptr && !options.image_size) options.image_size = size->as_int();
    return fetch(list.root().at("url").as_string(), options.prefix);
  }
  const auto is_index = [](const fs::path& path) { return path.extension() == ".index"; };
  if (!nearest_sibling(name + ".index", PathForm::path, is_index).empty()) return;
  fail_usage("{}.index: no such file, and no released checkpoint has this name; {}", name,
             did_you_mean(name, names));
}

}  // namespace moesaic
