// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/patch_mixture.h"

#include <torch/torch.h>

#include "moesaic/nn/patches.h"

namespace moesaic::nn {
namespace {

/// Returns a routing of all patches to one expert, with gates of 1.
Routing to_one_expert(const at::Tensor& x_Td) {
  Routing routing;
  routing.offsets = offsets_of_one_expert(x_Td.size(0), x_Td.device());
  routing.token = at::arange(x_Td.size(0), x_Td.options().dtype(at::kInt));
  return routing;
}

}  // namespace

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
    y_To = experts.ptr()->compute(x_Td, to_one_expert(x_Td), random).outputs;
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
