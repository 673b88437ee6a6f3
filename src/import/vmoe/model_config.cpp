// SPDX-License-Identifier: Apache-2.0
#include "reference.h"

#include <algorithm>

#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace {

constexpr const char *kDenseClass = "VisionTransformer", *kLayers = "encoder.moe.layers";

/// Converts [height, width] of the reference to one number if both are equal.
Value shortest_sides(const Value& value, const std::string& name) {
  if (value.kind() != Value::Kind::array) return value;
  const Value::Array& sides = value.items(name);
  if (sides.empty() || sides.size() > 2) {
    fail_usage("{}: '{}' must be one number or [height, width], found {}", value.where(), name,
               value.to_json().dump());
  }
  const bool square = sides.front().as_int(name) == sides.back().as_int(name);
  return square ? sides.front() : value;
}

Value patch_sides(const Value& value, const std::string& name) {
  for (const Value::Member& member : value.members(name)) {
    if (member.key != "size") {
      fail_usage("{}: unknown key '{}' in {}; choose one of size", member.origin.text(), member.key,
                 name);
    }
  }
  return shortest_sides(value.at("size"), name + ".size");
}

/// Names of a network: classes of the reference, then families of this library.
const std::vector<std::string> kNames = {"VisionTransformerMoe", "VisionTransformerMoeEnsemble",
                                         kDenseClass, kVMoE, kE3};

/// Removes the module prefix from the name of a class.
std::string without_module(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

bool is_family(const std::string& name) {
  return name == kVMoE || name == kE3;
}

Value family(const Value& value, const std::string& name) {
  const std::string& given = value.as_string(name);
  if (is_family(given)) return value;
  const std::string known = without_module(given);
  if (!is_family(known) && std::ranges::find(kNames, known) != kNames.end()) {
    return Value(value.origin(), std::string(known.ends_with("Ensemble") ? kE3 : kVMoE));
  }
  fail_usage("{}: unknown model '{}'; {}", value.where(), given, did_you_mean(given, kNames));
}

Value router_class(const Value& value, const std::string& name) {
  const std::string& given = value.as_string(name);
  const size_t call = given.find('(');
  if (call == std::string::npos) return Value(value.origin(), without_module(given));
  fail_usage("{}: {} '{}' is a call; give its arguments as settings beside the name; {}",
             value.where(), name, given,
             did_you_mean(without_module(given.substr(0, call)),
                          std::vector<std::string>{kTokenChoice, kExpertChoice}));
}

/// Converts the reference's `deterministic`; if it is missing, it is true in evaluation only.
Value router_noise(const Value& value, const std::string& name) {
  return Value(value.origin(), std::string(value.as_bool(name) ? kNoiseNever : kNoiseAlways));
}

/// Sorts a list of blocks and removes duplicates, since their order is irrelevant.
Value as_set(const Value& value, const std::string& name) {
  std::set<int64_t> blocks;
  for (const Value& block : value.items(name)) blocks.insert(block.as_int(name));
  return Value::from_json(blocks, value.where());
}

/// Converts a list of the kinds of random numbers that experts do not share.
Value splits_parameters(const Value& value, const std::string& name) {
  if (value.kind() != Value::Kind::array) return value;
  bool found = false;
  for (const Value& kind : value.items(name)) found |= kind.as_string(name) == "params";
  return Value(value.origin(), found);
}

/// Converts 0 and negative values to 1: capacities are not rounded up.
Value multiple(const Value& value, const std::string& name) {
  return value.as_int(name) > 0 ? value : Value(value.origin(), int64_t{1});
}

/// Checks settings that are not used here, since they may request something unsupported.
void check_unused(const std::string& name, const Value& value) {
  const auto check = [&](std::string_view key, const std::vector<std::string>& choices) {
    if (value.is_null() || !name.ends_with(key)) return;
    const std::string given =
        value.kind() == Value::Kind::string ? value.as_string() : value.to_json().dump();
    if (std::ranges::find(choices, given) != choices.end()) return;
    fail_usage("{}: {} '{}' is not supported; {}", value.where(), name, given,
               did_you_mean(given, choices));
  };
  check("dtype", {"float32"});
  check("dispatcher.name", {"einsum", "indices"});
}

using Conversion = std::function<Value(const Value&, const std::string&)>;

/// Names of one group of settings, here and in the reference.
struct SettingGroup {
  std::vector<std::string> own;                                       ///< Names in describe().
  std::map<std::string, std::pair<std::string, Conversion>> renamed;  ///< To one of `own`.
  std::vector<std::string> unused;
};

template <class Config>
std::vector<std::string> keys_of() {
  const Json defaults = to_json(Config{});
  std::vector<std::string> keys;
  for (const auto& [key, unused] : defaults.items()) keys.push_back(key);
  return keys;
}

const std::map<std::string, SettingGroup>& groups() {
  static const std::map<std::string, SettingGroup> list = {
      {"",
       {keys_of<VMoEConfig>(),
        {{"name", {"name", family}},
         {"classes", {"num_classes", {}}},
         {"patch_size", {"patch_size", shortest_sides}},
         {"patches", {"patch_size", patch_sides}},
         {"image_size", {"image_size", shortest_sides}},
         {"transformer", {"encoder", {}}}},
        {"deterministic", "dtype", "head_kernel_zero_init", "encoder_cls"}}},
      {"encoder", {keys_of<VMoEEncoderConfig>(), {}, {"deterministic", "dtype"}}},
      {"encoder.position_emb", {keys_of<VMoEPositionConfig>(), {}, {"h", "w"}}},
      {"encoder.moe",
       {keys_of<VMoEMoeConfig>(),
        {{"layers", {"layers", as_set}}, {"split_rngs", {"split_rngs", splits_parameters}}},
        {"deterministic", "dtype", "router_cls"}}},
      {"encoder.moe.router",
       {keys_of<VMoERouterConfig>(),
        {{"name", {"name", router_class}}, {"deterministic", {"noise", router_noise}}},
        {"dtype"}}},
      {"encoder.moe.router.dispatcher",
       {keys_of<VMoEDispatcherConfig>(),
        {{"capacity_ceil_or_round", {"capacity_rounding", {}}},
         {"capacity_multiple_of", {"capacity_multiple_of", multiple}}},
        {"name", "partition_spec", "einsum_precision", "dtype"}}}};
  return list;
}

[[noreturn]] void refuse_setting(const SettingGroup& known, const std::string& path,
                                 const Value::Member& member) {
  std::vector<std::string> names = known.own;
  for (const auto& [name, unused] : known.renamed) names.push_back(name);
  names.insert(names.end(), known.unused.begin(), known.unused.end());
  fail_usage("{}: unknown key '{}'{}; {}", member.origin.text(), member.key,
             path.empty() ? "" : " in " + path, did_you_mean(member.key, names));
}

/// Translates the names and values of a group of settings; `config` gets the names as given, and
/// those of unused settings.
Value translated(const Value& given, const std::string& path, VMoEModelConfig& config) {
  // Meaning of null. For most settings it is the same as leaving them out; the reference treats a
  // null `deterministic` of a router as false.
  static const std::map<std::string, Json> kMeantByNull = {
      {"capacity_multiple_of", 1}, {"representation_size", 0},      {"classes", 0},
      {"num_classes", 0},          {"deterministic", kNoiseAlways}, {"head_bias_init", nullptr}};
  const SettingGroup& known = groups().at(path);
  Value::Object members;
  for (const Value::Member& member : given.members(path)) {
    const std::string name = config_detail::join_path(path, member.key);
    Value value = member.value;
    if (std::ranges::find(known.unused, member.key) != known.unused.end()) {
      check_unused(name, value);
      config.unused.push_back(name);
      continue;
    }
    const auto alias = known.renamed.find(member.key);
    const std::string key = alias == known.renamed.end() ? member.key : alias->second.first;
    if (std::ranges::find(known.own, key) == known.own.end()) refuse_setting(known, path, member);
    const std::string inner = config_detail::join_path(path, key);
    if (std::ranges::find(members, key, &Value::Member::key) != members.end()) {
      fail_usage("{}: '{}' is given twice: '{}' is the same setting; leave one out",
                 member.origin.text(), name, config.given_names.at(inner));
    }
    if (value.is_null()) {
      const auto meant = kMeantByNull.find(member.key);
      if (meant == kMeantByNull.end()) continue;
      value = Value::from_json(meant->second, value.where());
    } else if (alias != known.renamed.end() && alias->second.second) {
      value = alias->second.second(value, name);
    }
    config.given_names[inner] = name;
    if (groups().contains(inner)) value = translated(value, inner, config);
    members.push_back({key, member.origin, std::move(value)});
  }
  return Value(given.origin(), std::move(members));
}

/// Adds defaults of the reference that differ from ours; expert choice has no auxiliary losses
/// there.
Value reference_defaults(const Value& model) {
  Json router = {{"noise_std", 1.0}};
  if (!setting_is(model, "encoder.moe.router.name", kExpertChoice)) {
    router["num_selected_experts"] = 1;
    router["importance_loss_weight"] = router["load_loss_weight"] = 1.0;
  }
  const Json moe = {{"split_rngs", false}, {"router", router}};
  return Value::from_json({{"encoder", {{"moe", moe}}}}, model.where());
}

[[noreturn]] void refuse_experts(const Value& model, const std::string& found) {
  const Value* members = find_setting(model, "encoder.moe.ensemble_size");
  const bool ensemble = members != nullptr && members->to_json() != 1;
  fail_usage("{}: {} has no experts, but {}; choose {}", model.at("name").where(), kDenseClass,
             found, kNames[ensemble ? 1 : 0]);
}

/// Drops settings that the reference's ensembles ignore: they always learn their positions, and
/// normalize queries and keys in attention pooling only.
void drop_what_ensembles_ignore(VMoEModelConfig& config) {
  for (const std::string key : {"position_emb", "attention_qk_norm"}) {
    const Value* found = find_setting(config.model, "encoder." + key);
    if (found == nullptr) continue;
    Value::Object rest = config.model.at("encoder").members();
    std::erase_if(rest, [&](const Value::Member& member) { return member.key == key; });
    if (key == "attention_qk_norm" && setting_is(config.model, "classifier", "map")) {
      config.model = config.model.with("map_head_qk_norm", *found);
    } else {
      config.unused.push_back("encoder." + key);
    }
    config.model = config.model.with("encoder", Value(config.model.at("encoder").origin(), rest));
  }
}

/// Returns the model in a file, which may be that of a whole run or checkpoint; `beside` gets what
/// is not used of it.
Value model_in_file(const Value& root, std::vector<std::string>& beside) {
  root.members("the model's configuration");
  if (root.find("model") == nullptr) return root;
  Value model = root.at("model");
  model.members("model");
  for (const Value::Member& member : root.members()) {
    if (member.key == "image_size" && model.find("image_size") == nullptr) {
      model = model.with("image_size", member.value);
    } else if (member.key != "model") {
      beside.push_back(member.key);
    }
  }
  return model;
}

bool has_experts(const Value& model) {
  const Value* layers = find_setting(model, kLayers);
  return layers != nullptr && !layers->items(kLayers).empty();
}

bool agrees(const VMoEFact& fact, const Value& value, const Value& model) {
  if (fact.key == "image_size") {
    const Value* patch_size = model.find("patch_size");
    const int64_t given = patch_size == nullptr ? 0 : patches_of(value, *patch_size);
    return fact.patches == 0 || given == fact.patches;
  }
  if (fact.value.is_null()) return value.to_json() != kLearned;  // The fact is position_emb.name.
  // The arrays are the same for the first patch's token as for the mean over all ("gap").
  const bool first_patch =
      fact.key == "classifier" && fact.value == "gap" && value.to_json() == "0";
  return first_patch || value.to_json() == fact.value;
}

/// Throws Error (usage) for missing settings that have no default in the reference and that no
/// shape implies, and for a capacity of 0, which no dispatcher of the reference has.
void check_untold(const VMoEModelConfig& config, const Value& model, const std::string& from) {
  if (!has_experts(model)) return;
  std::vector<std::string> needed = {"encoder.moe.group_size",
                                     "encoder.moe.router.dispatcher.capacity_factor"};
  if (!config.is_of_reference) needed.emplace_back("encoder.moe.router.num_selected_experts");
  const auto given = [&](const std::string& key) { return find_setting(model, key) != nullptr; };
  std::erase_if(needed, [&](const std::string& key) {
    return given(key) || (key.ends_with("group_size") && given("encoder.moe.num_group_images")) ||
           (key.ends_with("capacity_factor") && given("encoder.moe.router.dispatcher.capacity"));
  });
  if (!needed.empty()) {
    fail_usage(
        "{}: the model's configuration must have {}, which the arrays do not determine; give them "
        "by --model-config FILE",
        config.is_of_reference ? model.where() : from, fmt::join(needed, ", "));
  }
  const Value* dispatcher = find_setting(model, "encoder.moe.router.dispatcher");
  if (!config.is_of_reference || dispatcher == nullptr) return;
  for (const char* key : {"capacity", "capacity_factor"}) {
    const Value* value = dispatcher->find(key);
    if (value == nullptr) continue;
    const auto json = value->to_json();
    if (!json.is_number() || json.get<double>() > 0) return;  // Types are checked later.
  }
  fail_usage("{}: the dispatcher needs a capacity_factor above 0, or a capacity",
             dispatcher->where());
}

}  // namespace

const Value* find_setting(const Value& root, std::string_view path) {
  const size_t dot = path.find('.');
  const Value* found = root.find(path.substr(0, dot));
  if (found == nullptr || dot == std::string_view::npos) return found;
  return find_setting(*found, path.substr(dot + 1));
}

bool setting_is(const Value& root, std::string_view path, const Json& value) {
  const Value* found = find_setting(root, path);
  return found != nullptr && found->to_json() == value;
}

Value with_setting(const Value& root, std::string_view path, const Value& value) {
  Document document(root);
  document.set(std::string(path), value);
  return document.root();
}

int64_t patches_of(const Value& image_size, const Value& patch_size) {
  const Size2d image = config_detail::read_size2d(image_size, "model.image_size", at_least(1));
  const Size2d patch = config_detail::read_size2d(patch_size, "model.patch_size", at_least(1));
  return (image.height / patch.height) * (image.width / patch.width);
}

VMoEModelConfig vmoe_model_config(const Value& root) {
  VMoEModelConfig config;
  const Value given = model_in_file(root, config.unused);
  const Value* name = given.find("name");
  if (name != nullptr && name->kind() == Value::Kind::string) {
    const std::string of_class = without_module(name->as_string());
    config.is_of_reference = !is_family(of_class);
    config.is_dense = of_class == kDenseClass;
  }
  config.model = translated(given, "", config);
  if (config.model.find("name") == nullptr) {
    fail_usage("{}: missing key 'name'; choose one of {}", given.where(), fmt::join(kNames, ", "));
  }
  if (!config.is_of_reference) return config;
  config.model = reference_defaults(config.model).merged(config.model);
  if (config.is_dense && has_experts(config.model)) {
    refuse_experts(
        config.model,
        fmt::format("{} is {}", kLayers, find_setting(config.model, kLayers)->to_json().dump()));
  }
  if (setting_is(config.model, "name", kE3)) drop_what_ensembles_ignore(config);
  return config;
}

Value with_facts(const VMoEModelConfig& config, const std::vector<VMoEFact>& facts,
                 const std::string& from, const std::set<std::string>& free) {
  Value model = config.model;
  const bool own_defaults = model.find("name") != nullptr && !config.is_of_reference;
  for (const VMoEFact& fact : facts) {
    const Value* given = find_setting(model, fact.key);
    const bool is_free = free.contains(fact.key);
    if (config.is_dense && !is_free && fact.key == kLayers && !fact.value.empty()) {
      refuse_experts(model, fmt::format("in {} {}", from, fact.told_by));
    }
    if (given == nullptr && !fact.value.is_null()) {
      model = with_setting(model, fact.key, Value::from_json(fact.value, from));
    } else if (given == nullptr && !is_free) {
      fail_usage("{}: the model's configuration must have {}: {}", from, fact.key, fact.told_by);
    } else if (given != nullptr && !is_free && !agrees(fact, *given, model)) {
      const auto name = config.given_names.find(fact.key);
      fail_usage("{}: {} is {}, but {} has {}: {}", given->where(),
                 name == config.given_names.end() ? fact.key : name->second,
                 given->to_json().dump(), from,
                 fact.value.is_null() ? "another" : fact.value.dump(), fact.told_by);
    }
  }
  if (model.find("name") == nullptr) model = model.with("name", Value::from_json(kVMoE, from));
  if (!own_defaults) check_untold(config, model, from);
  return model;
}

}  // namespace moesaic
