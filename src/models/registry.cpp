// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/config/document.h"
#include "moesaic/models/family.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/registry.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic {
namespace {

constexpr const char* kKey = "preset";
constexpr int kMaxDepth = 8;  // Stops presets that name one another in a cycle.

Value without_key(const Value& config, std::string_view key) {
  Value::Object members = config.members();
  std::erase_if(members, [&](const Value::Member& member) { return member.key == key; });
  return Value(config.origin(), std::move(members));
}

Value filled(const Value& config, int depth) {
  const Value* name = config.find(kKey);
  if (name == nullptr) return config;
  if (depth == kMaxDepth) fail_usage("{}: presets extend one another in a cycle", name->where());
  const std::string preset = name->as_string(kKey);
  const std::vector<std::string> names = preset_names();
  if (std::ranges::find(names, preset) == names.end()) {
    fail_usage("{}: unknown preset '{}'; {}", name->where(), preset, did_you_mean(preset, names));
  }
  const Value base = Document::from_file(preset_path(preset)).root();
  return filled(base, depth + 1).merged(without_key(config, kKey));
}

/// `config` has its preset filled in.
const Family& named_family(const Value& config) {
  const Value* name = config.find("name");
  if (name == nullptr) {
    fail_usage("{}: missing key 'name' in model; {}", config.where(),
               did_you_mean("", model_names()));
  }
  return families().at(name->as_string("model.name"), name->where());
}

Value filled_in(const Value& config) {
  if (config.kind() == Value::Kind::string) {
    fail_usage("{}: 'model' must be an object, found {}; write {{\"{}\": {}}} or model.{}={}",
               config.where(), config.described(), kKey, config.to_json().dump(), kKey,
               config.as_string());
  }
  config.members("model");
  return with_preset(config);
}

/// An export's config.json says more than settings; what it says must be true.
void check_constants(const Value& given, const Model& model) {
  const Value* constants = given.find(kConstantsKey);
  if (constants == nullptr || constants->to_json() == model.constants()) return;
  fail_usage("{}: the constants of this network are {} and cannot be set", constants->where(),
             model.constants().dump());
}

}  // namespace

std::vector<std::string> model_names() {
  return families().names();
}

double count_parameters(const Value& config) {
  double count = 0.0;
  for (const at::Tensor& parameter : build_meta_model(config)->parameters()) {
    count += static_cast<double>(parameter.numel());
  }
  return count;
}

std::shared_ptr<Model> build_model(const Value& config, uint64_t seed) {
  return build_model(config, seed, count_parameters(config));
}

std::shared_ptr<Model> build_model(const Value& given, uint64_t seed, double parameters) {
  check_memory(parameters * sizeof(float), fmt::format("a model of {:.4g} parameters", parameters),
               given.where());
  const Value config = filled_in(given);
  return named_family(config).build(config, seed);
}

std::shared_ptr<Model> build_meta_model(const Value& given) {
  const Value config = filled_in(given);
  const Family& family = named_family(config);
  const MetaDeviceGuard on_meta;
  try {
    std::shared_ptr<Model> model = family.build(config, 0);
    check_constants(given, *model);
    return model;
  } catch (const c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find("overflow") == std::string::npos)
      throw;
    fail_usage("{}: the model has a tensor of 2^63 bytes or more; choose smaller sizes",
               given.where());
  }
}

std::shared_ptr<Model> meta_copy(const Model& model) {
  return build_meta_model(Value::from_json(model.config(), "model"));
}

Registry<Family>& families() {
  static Registry<Family> list(
      "model",
      {{kVMoE,
        family_of<VMoE, VMoEConfig>(
            "vision transformer with experts in place of some MLPs (V-MoE), or without any (ViT)")},
       {kE3,  // It has the settings of V-MoE.
        family_of<VMoE, VMoEConfig>(
            "ensemble of V-MoEs in one network, with experts of its own for each member (E3)",
            /*is_listed=*/false)}});
  return list;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const fs::path& file : model_files("presets")) {
    const fs::path family = file.parent_path().parent_path();
    names.push_back(family.filename().string() + "/" + file.stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path preset_path(const std::string& name) {
  const fs::path path(name);
  return resource("models") / path.parent_path() / "presets" / (path.filename().string() + ".json");
}

Value with_preset(const Value& config) {
  const Value all = filled(config, 0);
  return all.find(kConstantsKey) == nullptr ? all : without_key(all, kConstantsKey);
}

}  // namespace moesaic
