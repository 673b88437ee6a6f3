// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/patch_mixture.h"

#include <torch/torch.h>

#include "moesaic/nn/patches.h"
#include "moesaic/ops/autocast.h"
#include "moesaic/ops/filter_experts.h"
#include "script/parts.h"

namespace moesaic::nn {
namespace {

at::Tensor weights_by_class(const PatchExpertsOptions& options) {
  at::Tensor a = torch::zeros({options.experts, options.hidden, options.outputs});
  if (options.outputs == 1) {
    a.fill_(1.0);
    a.narrow(0, (options.experts + 1) / 2, options.experts / 2).fill_(-1.0);
    return a;
  }
  const int64_t each = options.experts / options.outputs;
  for (int64_t c = 0; c < options.outputs; ++c) a.narrow(0, c * each, each).select(2, c).fill_(1.0);
  return a;
}

}  // namespace

PatchExpertsImpl::PatchExpertsImpl(const PatchExpertsOptions& options,
                                   const at::Generator& generator) {
  w = register_parameter("w", torch::empty({options.experts, options.width, options.hidden})
                                  .normal_(0.0, options.init_std, generator));
  a = register_buffer("a", options.by_class
                               ? weights_by_class(options)
                               : torch::empty({options.experts, options.hidden, options.outputs})
                                     .normal_(0.0, 1.0, generator));
}

ExpertRows PatchExpertsImpl::compute(const at::Tensor& x_Td, const Routing& routing,
                                     const at::Generator&) {
  const NoAutocast exact;
  const int64_t hidden = w.size(2);
  const at::Tensor no_bias = at::zeros({count(), hidden}, w.options().requires_grad(false));
  // Filters with an output each: the hidden layer.
  const at::Tensor hidden_Ah =
      filter_experts(x_Td.unsqueeze(1), routing, {w, no_bias}, hidden, Activation::relu);
  // Rows without an expert are 0, so that any expert's weights will do for them.
  const at::Tensor slot_A = row_experts(routing).clamp_max(count() - 1);
  return {(hidden_Ah.unsqueeze(2) * a.index_select(0, slot_A)).sum(1), {}};
}

ExpertsScript PatchExpertsImpl::script_source() const {
  return {script::one_by_one(outputs(), {"w", "a"}, "hidden = torch.relu(torch.mm(x, w))",
                             "torch.mm(hidden, a)")};
}

PatchMixtureImpl::PatchMixtureImpl(PatchMixtureOptions options, const at::Generator& generator)
    : options_(std::move(options)) {
  experts = PatchExperts(options_.experts, generator);
  if (!options_.router) {
    register_module("experts", experts);
    return;
  }
  const std::vector<int64_t>& kept = kept_experts(options_.router->rule);
  if (!kept.empty()) experts->keep(kept);
  moe = register_module("moe", MoELayer(*options_.router, experts.ptr(), generator));
  const torch::NoGradGuard no_grad;
  moe->router->weight.normal_(0.0, options_.router_std, generator);
}

PatchMixtureImpl::Output PatchMixtureImpl::forward(const at::Tensor& images_BCHW,
                                                   const at::Generator& random) const {
  return of_patches(patches_of(images_BCHW, options_.patch), random);
}

PatchMixtureImpl::Output PatchMixtureImpl::of_patches(const at::Tensor& x_Bnd,
                                                      const at::Generator& random) const {
  const at::Tensor x_Td = x_Bnd.flatten(0, 1);
  Output out;
  at::Tensor y_To;
  if (moe.is_empty()) {
    Routing to_one_expert;
    to_one_expert.offsets = offsets_of_one_expert(x_Td.size(0), x_Td.device());
    to_one_expert.token = at::arange(x_Td.size(0), x_Td.options().dtype(at::kInt));
    y_To = experts.ptr()->compute(x_Td, to_one_expert, random).outputs;
  } else {
    MoEOutput routed = moe->forward(x_Td, random);
    y_To = routed.y_Td;
    out.routed = std::move(routed);
  }
  const at::Tensor f_Bo =
      y_To.view({x_Bnd.size(0), options_.patches, y_To.size(1)}).sum(1) / options_.divisor;
  out.f_Bo = f_Bo;
  out.logits_BC = f_Bo.size(1) == 1 ? at::cat({f_Bo / 2, -f_Bo / 2}, 1) : f_Bo;
  return out;
}

std::shared_ptr<PatchMixtureImpl> find_patch_mixture(const torch::nn::Module& network) {
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (auto found = std::dynamic_pointer_cast<PatchMixtureImpl>(module)) return found;
  }
  return nullptr;
}

}  // namespace moesaic::nn
