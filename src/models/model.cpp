// SPDX-License-Identifier: Apache-2.0
#include "moesaic/models/model.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "moesaic/models/meta_device.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

bool Model::may_differ_from_pretrained(const std::string& parameter) const {
  return parameter.starts_with("head") || parameter.starts_with("experts.") ||
         parameter.find(".experts.") != std::string::npos;
}

void Model::initialise_from(const Model& source, bool new_head, const std::string& from) {
  if (new_head && source.classes() != classes()) give_head(*this, source.classes());
  load_state(*this, state_of(source), from, setting_paths().kept_experts);
}

std::optional<torch::jit::Module> Model::torchscript() const {
  return std::nullopt;
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const auto& parameter : parameters()) count += parameter.numel();
  return count;
}

at::Device Model::device() const {
  return parameters().front().device();
}

void give_head(Model& model, int64_t classes) {
  std::optional<OnMetaDevice> on_meta;
  if (model.device().is_meta()) on_meta.emplace();
  model.reset_head(classes);
}

}  // namespace moesaic
