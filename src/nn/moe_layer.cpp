// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/moe_layer.h"

#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/nn/init.h"
#include "moesaic/nn/mlp_experts.h"

namespace moesaic::nn {
namespace {

RouterOptions router_options(const MoELayerOptions& options) {
  return {.width = options.width,
          .experts = options.experts,
          .members = options.members,
          .rule = options.rule,
          .noise = options.noise,
          .evaluation_seed = options.evaluation_seed,
          .evaluation_capacity_factor = options.evaluation_capacity_factor};
}

MlpExpertsOptions experts_options(const MoELayerOptions& options, int64_t experts) {
  return {.experts = experts,
          .width = options.width,
          .hidden = options.hidden,
          .activation = options.activation,
          .bfloat16 = options.bfloat16,
          .dropout = options.dropout,
          .shared_init = options.shared_init};
}

}  // namespace

MoELayerImpl::MoELayerImpl(MoELayerOptions options, uint64_t seed)
    : MoELayerImpl(options, make_generator(seed)) {}

MoELayerImpl::MoELayerImpl(const MoELayerOptions& options, at::Generator generator) {
  router = register_module("router", Router(router_options(options), generator));
  const auto present = static_cast<int64_t>(kept().size());
  const MlpExperts mlps(experts_options(options, present), generator);
  experts = register_module<Experts>("experts", mlps.ptr());
}

MoELayerImpl::MoELayerImpl(RouterOptions options, std::shared_ptr<Experts> given,
                           at::Generator generator) {
  experts = register_module("experts", std::move(given));
  router = register_module("router", Router(std::move(options), std::move(generator)));
  if (experts->count() != static_cast<int64_t>(kept().size())) {
    fail("MoELayer: the router sends tokens to {} experts, there are {}", kept().size(),
         experts->count());
  }
}

MoEOutput MoELayerImpl::forward(const at::Tensor& x_Td, const at::Generator& random) const {
  return forward(x_Td, x_Td, random);
}

MoEOutput MoELayerImpl::forward(const at::Tensor& router_input_Td, const at::Tensor& experts_input,
                                const at::Generator& random) const {
  // Experts dispatch and combine, see Experts::forward(), since some do it in one operator.
  RoutingRecord record = router->forward(router_input_Td, random);
  ExpertsOutput computed = experts->forward(experts_input, record.routing, random);
  return {std::move(record), std::move(computed.y_To), std::move(computed.embedding_Td)};
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
  router->keep(ids);
}

}  // namespace moesaic::nn
