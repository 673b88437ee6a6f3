// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <vector>

#include "moesaic/config/sides.h"
#include "moesaic/nn/experts.h"
#include "moesaic/nn/moe_layer.h"

namespace moesaic::nn {

struct PatchExpertsOptions {
  int64_t experts = 1;    ///< Number of experts, K.
  int64_t width = 0;      ///< Width of a patch, d.
  int64_t hidden = 0;     ///< Neurons of an expert, h = m / k.
  int64_t outputs = 1;    ///< Outputs o: 1 for two classes, else a class each.
  double init_std = 0.0;  ///< Of the neurons' initial values, which are normal.
  bool by_class = false;  ///< The output weights: false: a ~ N(0, 1); true: each expert adds to a
                          ///< class of its own, in equal parts in turn, or, with one output,
                          ///< the first half adds and the other subtracts.
};

/// Experts of the patch-level mixture of convolutional networks (pMoE paper, eqs. 1 and 23), for
/// one patch: output i is sum_r a_{r,s,i} ReLU(<w_{r,s}, x>), without biases. Parameter `w` [K, d,
/// h]; buffer `a` [K, h, o], which is fixed.
class PatchExpertsImpl : public Experts {
 public:
  PatchExpertsImpl(const PatchExpertsOptions& options, const at::Generator& generator);

  /// Computes patches x_Td [T, d] -> [A, o].
  ExpertRows compute(const at::Tensor& x_Td, const Routing& routing,
                     const at::Generator& random) override;
  Sharing sharing() const override { return Sharing::rows; }
  int64_t count() const override { return w.size(0); }
  int64_t outputs() const override { return a.size(2); }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(w.size(2) * (w.size(1) + a.size(2)));
  }
  ExpertMatrices matrices(int64_t slot, const ParameterValues& values) const override {
    return {.hidden = {values(w)[slot].t()}, .others = {}};
  }
  ExpertsScript script_source() const override;

  at::Tensor w, a;
};
TORCH_MODULE(PatchExperts);

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
