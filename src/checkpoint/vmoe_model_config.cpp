// SPDX-License-Identifier: Apache-2.0
#include "moesaic/checkpoint/vmoe_model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/config/schema.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

/// Sizes of the reference are [height, width]; here both are one number.
Value square_side(const Value& value, const std::string& name) {
  if (value.kind() != Value::Kind::array) return value;
  const Value::Array& sides = value.items(name);
  if (sides.empty() || sides.size() > 2 ||
      sides.front().as_int(name) != sides.back().as_int(name)) {
    fail_usage("{}: '{}' must be one number or two equal ones, found {}", value.where(), name,
               value.to_json().dump());
  }
  return sides.front();
}

Value patch_side(const Value& value, const std::string& name) {
  for (const Value::Member& member : value.members(name)) {
    if (member.key != "size") {
      fail_usage("{}: unknown key '{}' in {}; choose one of size", member.origin.text(), member.key,
                 name);
    }
  }
  return square_side(value.at("size"), name + ".size");
}

/// The names of the reference's classes, which may stand behind their module's.
std::optional<std::string> family_of_class(const std::string& name) {
  static const std::map<std::string, std::string> kClasses = {
      {"VisionTransformer", kVMoE},
      {"VisionTransformerMoe", kVMoE},
      {"VisionTransformerMoeEnsemble", kE3}};
  const auto found = kClasses.find(name.substr(name.rfind('.') + 1));
  return found == kClasses.end() ? std::nullopt : std::optional(found->second);
}

Value family(const Value& value, const std::string& name) {
  const std::string& given = value.as_string(name);
  if (given == kVMoE || given == kE3) return value;
  if (const auto known = family_of_class(given)) return Value(value.origin(), *known);
  fail_usage("{}: unknown model '{}'; {}", value.where(), given,
             did_you_mean(given, std::vector<std::string>{"VisionTransformerMoe",
                                                          "VisionTransformerMoeEnsemble",
                                                          "VisionTransformer", kVMoE, kE3}));
}

/// Learned embeddings are the only ones that released models have.
void check_position_embedding(const Value& value) {
  const Value* name = value.find("name");
  if (name != nullptr && name->as_string("position_emb.name") == "learned") return;
  fail_usage("{}: position_emb {} is not supported; choose {{\"name\": \"learned\"}}",
             value.where(), value.to_json().dump());
}

using Conversion = std::function<Value(const Value&, const std::string&)>;

/// One group of settings: which names it may have here and there.
struct Group {
  std::vector<std::string> own;                                       ///< as described
  std::map<std::string, std::pair<std::string, Conversion>> renamed;  ///< to one of `own`
  std::vector<std::string> unused;
};

template <class Config>
std::vector<std::string> keys_of() {
  Config config;
  config_detail::KeyCollector keys;
  describe(keys, config);
  return keys.keys();
}

Value as_it_is(const Value& value, const std::string&) {
  return value;
}

const std::map<std::string, Group>& groups() {
  static const std::map<std::string, Group> list = {
      {"",
       {keys_of<VMoEConfig>(),
        {{"name", {"name", family}},
         {"num_classes", {"classes", as_it_is}},
         {"patch_size", {"patch_size", square_side}},
         {"patches", {"patch_size", patch_side}},
         {"image_size", {"image_size", square_side}},
         {"transformer", {"encoder", as_it_is}}},
        {"deterministic", "dtype", "head_kernel_zero_init", "encoder_cls"}}},
      {"encoder", {keys_of<VMoEEncoderConfig>(), {}, {"deterministic", "dtype", "position_emb"}}},
      {"encoder.moe",
       {keys_of<VMoEMoeConfig>(), {}, {"deterministic", "dtype", "split_rngs", "router_cls"}}},
      {"encoder.moe.router", {keys_of<VMoERouterConfig>(), {}, {"deterministic", "dtype"}}},
      {"encoder.moe.router.dispatcher",
       {keys_of<VMoEDispatcherConfig>(), {}, {"name", "partition_spec", "dtype"}}}};
  return list;
}

class Translation {
 public:
  std::vector<std::string> unused;

  Value group(const Value& given, const std::string& path) {
    const Group& known = groups().at(path);
    Value::Object members;
    for (const Value::Member& member : given.members(path)) add(known, path, member, members);
    return Value(given.origin(), std::move(members));
  }

 private:
  /// Of most settings, null means the same as leaving them out.
  static std::optional<int64_t> meant_by_null(const std::string& key) {
    if (key == "capacity_multiple_of") return 1;
    if (key == "representation_size") return 0;
    return std::nullopt;
  }

  void add(const Group& known, const std::string& path, const Value::Member& member,
           Value::Object& members) {
    const std::string name = config_detail::join_path(path, member.key);
    if (std::ranges::find(known.unused, member.key) != known.unused.end()) {
      if (member.key == "position_emb" && !member.value.is_null()) {
        check_position_embedding(member.value);
      }
      unused.push_back(name);
      return;
    }
    const auto alias = known.renamed.find(member.key);
    const std::string key = alias == known.renamed.end() ? member.key : alias->second.first;
    if (std::ranges::find(known.own, key) == known.own.end()) refuse(known, path, member);
    if (std::ranges::find(members, key, &Value::Member::key) != members.end()) {
      fail_usage("{}: '{}' is given twice, under two names", member.origin.text(), name);
    }
    if (member.value.is_null()) {
      if (const auto meant = meant_by_null(key)) {
        members.push_back({key, member.origin, Value(member.value.origin(), *meant)});
      }
      return;
    }
    const std::string inner = config_detail::join_path(path, key);
    const Value value =
        alias == known.renamed.end() ? member.value : alias->second.second(member.value, name);
    members.push_back({key, member.origin, groups().contains(inner) ? group(value, inner) : value});
  }

  [[noreturn]] static void refuse(const Group& known, const std::string& path,
                                  const Value::Member& member) {
    std::vector<std::string> names = known.own;
    for (const auto& [name, unused] : known.renamed) names.push_back(name);
    names.insert(names.end(), known.unused.begin(), known.unused.end());
    fail_usage("{}: unknown key '{}'{}; {}", member.origin.text(), member.key,
               path.empty() ? "" : " in " + path, did_you_mean(member.key, names));
  }
};

/// What the reference's classes do where a setting is left out, and this library does not. Its
/// router whose experts choose has no losses.
Value reference_defaults(const Value& model) {
  const Value* name = find_setting(model, "encoder.moe.router.name");
  const bool experts_choose = name != nullptr && name->to_json() == kExpertsChoose;
  Json router = {{"noise_std", 1.0}};
  if (!experts_choose) {
    router["num_selected_experts"] = 1;
    router["importance_loss_weight"] = router["load_loss_weight"] = 1.0;
  }
  return Value::from_json({{"encoder", {{"moe", {{"router", router}}}}}}, model.where());
}

bool is_of_reference(const Value& model) {
  const Value* name = model.find("name");
  return name != nullptr && name->kind() == Value::Kind::string &&
         family_of_class(name->as_string()).has_value();
}

/// A file may hold more than the model: the whole configuration of a run or of a checkpoint.
struct ModelInFile {
  Value model;
  std::vector<std::string> beside;
};

ModelInFile model_in_file(const Value& root) {
  root.members("the model's configuration");
  const Value* model = root.find("model");
  if (model == nullptr) return {root, {}};
  ModelInFile found{*model, {}};
  model->members("model");
  for (const Value::Member& member : root.members()) {
    if (member.key == "image_size" && model->find("image_size") == nullptr) {
      found.model = found.model.with("image_size", member.value);
    } else if (member.key != "model") {
      found.beside.push_back(member.key);
    }
  }
  return found;
}

bool agrees(const VMoEFact& fact, const Value& value) {
  // The arrays do not tell the first patch's row from the mean of all.
  const bool first_patch = fact.key == "classifier" && fact.value == "gap" &&
                           value.kind() == Value::Kind::string && value.as_string() == "0";
  return first_patch || value.to_json() == fact.value;
}

/// What the reference has no default for and no shape tells.
std::vector<std::string> untold_settings(const Value& model, bool reference) {
  const Value* layers = find_setting(model, "encoder.moe.layers");
  if (layers == nullptr || layers->items("encoder.moe.layers").empty()) return {};
  std::vector<std::string> needed = {"encoder.moe.group_size",
                                     "encoder.moe.router.dispatcher.capacity_factor"};
  if (!reference) needed.emplace_back("encoder.moe.router.num_selected_experts");
  std::erase_if(needed,
                [&](const std::string& key) { return find_setting(model, key) != nullptr; });
  return needed;
}

}  // namespace

const Value* find_setting(const Value& root, std::string_view path) {
  const size_t dot = path.find('.');
  const Value* found = root.find(path.substr(0, dot));
  if (found == nullptr || dot == std::string_view::npos) return found;
  return find_setting(*found, path.substr(dot + 1));
}

Value with_setting(const Value& root, std::string_view path, const Value& value) {
  const size_t dot = path.find('.');
  const std::string_view key = path.substr(0, dot);
  if (dot == std::string_view::npos) return root.with(key, value);
  const Value* inner = root.find(key);
  const Value empty(value.origin(), Value::Object{});
  return root.with(key,
                   with_setting(inner == nullptr ? empty : *inner, path.substr(dot + 1), value));
}

VMoEModelConfig vmoe_model_config(const Value& root) {
  const ModelInFile found = model_in_file(root);
  Translation translation;
  translation.unused = found.beside;
  VMoEModelConfig config;
  config.of_reference = is_of_reference(found.model);
  config.model = translation.group(found.model, "");
  if (config.of_reference) {
    config.model = reference_defaults(config.model).merged(config.model);
  }
  config.unused = std::move(translation.unused);
  if (config.model.find("name") == nullptr) {
    fail_usage(
        "{}: missing key 'name'; choose one of VisionTransformerMoe, "
        "VisionTransformerMoeEnsemble, VisionTransformer, {}, {}",
        found.model.where(), kVMoE, kE3);
  }
  return config;
}

Value with_facts(const VMoEModelConfig& config, const std::vector<VMoEFact>& facts,
                 const std::string& from, const std::set<std::string>& free) {
  Value model = config.model;
  for (const VMoEFact& fact : facts) {
    const Value* given = find_setting(model, fact.key);
    if (given == nullptr) {
      model = with_setting(model, fact.key, Value::from_json(fact.value, from));
    } else if (!free.contains(fact.key) && !agrees(fact, *given)) {
      fail_usage("{}: {} is {}, but {} has {}: {}", given->where(), fact.key,
                 given->to_json().dump(), from, fact.value.dump(), fact.told_by);
    }
  }
  const bool named = model.find("name") != nullptr;
  if (!named) model = model.with("name", Value::from_json(kVMoE, from));
  const bool own_defaults = named && !config.of_reference;
  if (own_defaults) return model;
  const std::vector<std::string> untold = untold_settings(model, config.of_reference);
  if (untold.empty()) return model;
  fail_usage("{}: the model's configuration must have {}, which the arrays do not tell",
             config.of_reference ? model.where() : from, fmt::join(untold, ", "));
}

}  // namespace moesaic
