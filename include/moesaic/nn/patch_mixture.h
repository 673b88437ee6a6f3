// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>

#include "moesaic/config/sides.h"
#include "moesaic/nn/moe_layer.h"
#include "moesaic/nn/patch_experts.h"

namespace moesaic::nn {

struct PatchMixtureOptions {
  Sides patch = 28;
  int64_t patches = 16;  ///< n of an image.
  double divisor = 1.0;  ///< What an expert's sum over its patches is divided by: l or n.
  PatchExpertsOptions experts;
  std::optional<RouterOptions> router;  ///< None: a single expert gets all patches.
  double router_std = 0.0;              ///< Of the routers' initial values, which are normal.
};

/// The patch-level mixture of two-layer convolutional networks (pMoE paper, model (1) and eq. 23):
///
///     f_i(x) = sum_s sum_r a_{r,s,i} / divisor sum_{j in J_s} ReLU(<w_{r,s}, x_j>) G_{j,s}
class PatchMixtureImpl : public torch::nn::Module {
 public:
  PatchMixtureImpl(PatchMixtureOptions options, const at::Generator& generator);

  struct Output {
    at::Tensor f_Bo;
    at::Tensor logits_BC;  ///< f, or f / 2 and -f / 2 where it is one number for two classes.
    std::optional<RoutingRecord> routed;  ///< None without a router.
  };
  Output forward(const at::Tensor& images_BCHW, const at::Generator& random) const;
  /// The same for images that are cut into patches already.
  Output of_patches(const at::Tensor& x_Bnd, const at::Generator& random) const;

  const PatchMixtureOptions& options() const { return options_; }

  PatchExperts experts{nullptr};  ///< The experts of `moe` where there is one.
  MoELayer moe{nullptr};          ///< Null without a router.

 private:
  PatchMixtureOptions options_;
};
TORCH_MODULE(PatchMixture);

/// Returns the patch-level mixture within a network, or null.
std::shared_ptr<PatchMixtureImpl> find_patch_mixture(const torch::nn::Module& network);

}  // namespace moesaic::nn
