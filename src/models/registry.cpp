// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/registry.h"

#include <functional>
#include <map>

#include "moesaic/base/error.h"
#include "moesaic/base/memory.h"
#include "moesaic/base/nearest.h"
#include "moesaic/models/cluster_moe.h"
#include "moesaic/models/image_moe.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/preset.h"
#include "moesaic/models/vmoe.h"

namespace moesaic {
namespace {

struct Family {
  std::function<double(const Value&)> count;
  std::function<std::shared_ptr<Model>(const Value&, uint64_t)> build;
  std::function<std::string()> help;
};

VMoEConfig vmoe_config(const Value& config) {
  return parse<VMoEConfig>(with_preset(config), "model");
}

Family vmoe_family() {
  return {[](const Value& config) { return parameter_count(vmoe_config(config)); },
          [](const Value& config, uint64_t seed) {
            return std::make_shared<VMoE>(vmoe_config(config), seed);
          },
          [] { return help_text<VMoEConfig>(); }};
}

Family cluster_family() {
  return {
      [](const Value& config) { return parameter_count(parse<ClusterMoEConfig>(config, "model")); },
      [](const Value& config, uint64_t seed) {
        return std::make_shared<ClusterMoE>(parse<ClusterMoEConfig>(config, "model"), seed);
      },
      [] { return help_text<ClusterMoEConfig>(); }};
}

Family image_family() {
  return {
      [](const Value& config) { return parameter_count(parse<ImageMoEConfig>(config, "model")); },
      [](const Value& config, uint64_t seed) {
        return std::make_shared<ImageMoE>(parse<ImageMoEConfig>(config, "model"), seed);
      },
      [] { return help_text<ImageMoEConfig>(); }};
}

/// The list is explicit, so that no linker can drop a family.
const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> list = {{kVMoE, vmoe_family()},
                                                     {kE3, vmoe_family()},
                                                     {kClusterMoE, cluster_family()},
                                                     {kImageMoE, image_family()}};
  return list;
}

const Family& family(const std::string& name, const std::string& where) {
  const auto found = families().find(name);
  if (found == families().end()) {
    fail_usage("{}: unknown model '{}'; {}", where, name, did_you_mean(name, model_names()));
  }
  return found->second;
}

const Family& family_of(const Value& given) {
  given.members("model");
  const Value config = with_preset(given);
  const Value* name = config.find("name");
  if (name == nullptr) {
    fail_usage("{}: missing key 'name' in model; {}", given.where(),
               did_you_mean("", model_names()));
  }
  return family(name->as_string("model.name"), name->where());
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : families()) names.push_back(name);
  return names;
}

double count_parameters(const Value& config) {
  return family_of(config).count(config);
}

std::shared_ptr<Model> build_model(const Value& config, uint64_t seed) {
  const Family& found = family_of(config);
  const double count = found.count(config);
  check_memory(count * sizeof(float), fmt::format("a model of {:.4g} parameters", count),
               config.where());
  return found.build(config, seed);
}

std::shared_ptr<Model> build_model_shape(const Value& config) {
  const OnMetaDevice on_meta;
  return family_of(config).build(config, 0);
}

std::string model_help(const std::string& name) {
  return family(name, "model").help();
}

}  // namespace moesaic
