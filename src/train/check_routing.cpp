// SPDX-License-Identifier: Apache-2.0
#include "check_routing.h"

#include <ATen/ATen.h>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

bool choosing_rows(const nn::RoutingRule& rule) {
  const auto* options = std::get_if<ExpertChoiceOptions>(&rule);
  return options != nullptr && options->rows > 0;
}

}  // namespace

void check_tokens(const PhasePlaces& places, const Model& model, const MoEBlock& block,
                  const nn::RoutingRule& rule, int64_t tokens) {
  try {
    const int64_t experts = block.layer->options().experts;
    nn::route(at::empty({tokens, experts}, at::device(at::kMeta)), rule);
  } catch (const Error& error) {
    const SettingPaths paths = model.setting_paths();
    const std::string& rows = choosing_rows(rule) ? paths.rows_per_expert : paths.capacity_factor;
    fail_usage("{}: phase '{}': {}",
               PhasePlaces::blame({places.of_model(paths.group_size, "batch_size"),
                                   places.of_model(rows, "batch_size")}),
               places.phase().name, error.what());
  }
}

}  // namespace moesaic
