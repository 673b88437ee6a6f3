// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/moe_layer.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"

namespace moesaic::nn {

MoELayerImpl::MoELayerImpl(MoELayerOptions options, uint64_t seed)
    : MoELayerImpl(std::move(options), make_generator(seed)) {}

MoELayerImpl::MoELayerImpl(MoELayerOptions options, at::Generator generator)
    : options_(std::move(options)) {
  const auto& kept = kept_experts(options_.rule);
  const int64_t computed = kept.empty() ? options_.experts : static_cast<int64_t>(kept.size());
  router =
      register_module("router", Router(RouterOptions{.width = options_.width,
                                                     .experts = options_.experts,
                                                     .members = options_.members,
                                                     .rule = options_.rule,
                                                     .noise = options_.noise,
                                                     .evaluation_seed = options_.evaluation_seed},
                                       generator));
  experts = register_module("experts", Experts(ExpertsOptions{.experts = computed,
                                                              .width = options_.width,
                                                              .hidden = options_.hidden,
                                                              .activation = options_.activation,
                                                              .bfloat16 = options_.bfloat16,
                                                              .dropout = options_.dropout},
                                               generator));
}

MoEOutput MoELayerImpl::forward(const at::Tensor& x_Td, const at::Generator& random) const {
  const RouterOutput routed = router->forward(x_Td, random);
  return {experts->forward(x_Td, routed.routing, random), routed.logits_TE, routed.noisy_logits_TE,
          routed.routing};
}

std::vector<int64_t> MoELayerImpl::kept() const {
  if (is_pruned()) return kept_experts(router->options().rule);
  std::vector<int64_t> all(options_.experts);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void MoELayerImpl::keep_experts(const std::vector<int64_t>& ids) {
  const std::vector<int64_t> present = kept();
  if (ids.empty()) fail("MoELayer: at least one of the {} experts must be kept", present.size());
  std::vector<int64_t> slots;
  for (const int64_t id : ids) {
    const auto place = std::lower_bound(present.begin(), present.end(), id);
    if (place == present.end() || *place != id) {
      fail("MoELayer: expert {} cannot be kept: it is not among the {} present ones", id,
           present.size());
    }
    slots.push_back(place - present.begin());
  }
  if (!std::is_sorted(slots.begin(), slots.end(), std::less_equal<>())) {
    fail("MoELayer: the experts to keep must be ascending, each once");
  }
  experts->keep(slots);
  const bool all = static_cast<int64_t>(ids.size()) == options_.experts;
  const std::vector<int64_t> now = all ? std::vector<int64_t>{} : ids;
  set_kept_experts(options_.rule, now);
  router->keep(now);
}

}  // namespace moesaic::nn
