// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/registry.h"

#include <c10/util/Exception.h>

#include <string_view>

#include "moesaic/base/error.h"
#include "moesaic/base/memory.h"
#include "moesaic/base/nearest.h"
#include "moesaic/models/family.h"
#include "moesaic/models/meta_device.h"
#include "moesaic/models/preset.h"

namespace moesaic {
namespace {

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
  for (const at::Tensor& parameter : build_model_shape(config)->parameters()) {
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

std::shared_ptr<Model> build_model_shape(const Value& given) {
  const Value config = filled_in(given);
  const Family& family = named_family(config);
  const OnMetaDevice on_meta;
  try {
    std::shared_ptr<Model> model = family.build(config, 0);
    check_constants(given, *model);
    return model;
  } catch (const c10::Error& error) {
    if (std::string_view(error.what_without_backtrace()).find("overflow") == std::string::npos)
      throw;
    fail_usage("{}: the model has a tensor whose bytes are more than 64 bits count", given.where());
  }
}

}  // namespace moesaic
