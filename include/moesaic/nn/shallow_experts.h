// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include <vector>

#include "moesaic/nn/experts.h"
#include "moesaic/nn/router.h"

namespace moesaic::nn {

struct ShallowExpertsOptions {
  int64_t experts = 8, width = 200, hidden = 500;
  double bias = 1.0;     ///< C_b: biases are U[-C_b, C_b].
  bool hermite = false;  ///< The randomised polynomial of appendix A.3; false: ReLU.
  int64_t min_degree = 3, max_degree = 5;  ///< k* and p* of that polynomial.
};

/// Returns sigma(<w[j], x> + b[j]) for the rows of x_Rd: [R, J]. sigma is the ReLU, or where
/// hermite_JK is defined the polynomials of these coefficients.
at::Tensor shallow_neurons(const at::Tensor& x_Rd, const at::Tensor& w_Jd, const at::Tensor& b_J,
                           const at::Tensor& hermite_JK);

/// Two-layer networks of the latent paper (section 3.2), f_m(x) = 1/J sum_j a[m, j] sigma(<w[m, j],
/// x> + b[m, j]) with rows w[m, j] of norm 1. sigma is the ReLU, or for each neuron sum_i eps_i
/// He_i / sqrt(i!) with random signs eps (appendix A.3). Parameters `w` [M, J, d], `a` [M, J], `b`
/// [M, J]; buffer `hermite` [M, J, p* + 1] of those signs, and 0 for i < k*.
class ShallowExpertsImpl : public Experts {
 public:
  ShallowExpertsImpl(ShallowExpertsOptions options, const at::Generator& generator);

  struct Neurons {
    at::Tensor w, a;  ///< Of the parameters' shapes, on the CPU.
  };
  /// Returns new first layers, uniform on the sphere, and a = +-1 (Algorithm 1).
  Neurons draw_neurons(const at::Generator& generator) const;

  ExpertRows compute(const at::Tensor& x_Td, const Routing& routing,
                     const at::Generator& random) override;
  int64_t count() const override { return w.size(0); }
  int64_t outputs() const override { return 1; }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(w.size(1) * (w.size(2) + 1));
  }
  ExpertMatrices matrices(int64_t slot, const ParameterValues& values) const override {
    return {.hidden = {values(w)[slot]}, .others = {values(a)[slot].unsqueeze(0)}};
  }
  ExpertsScript script_source() const override;

  /// Returns the expert's outputs for the rows of x_Rd: [R].
  at::Tensor outputs_of(const at::Tensor& x_Rd, int64_t slot) const;

  at::Tensor w, a, b, hermite;
};
TORCH_MODULE(ShallowExperts);

// The two ways in which the latent paper routes (section 3.2).

inline constexpr const char *kTopOne = "top1", *kEveryAboveZero = "adaptive";

/// Returns the options of a router for one of these: "top1", F_1: the expert of the largest logit,
/// weighted with its softmax over all, ties at random; "adaptive", F^_M: every expert whose logit
/// is at least 0, with gate 1.
RouterOptions latent_router_options(int64_t width, int64_t experts, const std::string& routing,
                                    const std::vector<int64_t>& kept);

/// Returns which of both a router's rule is.
std::string latent_routing(const RouterOptions& options);

}  // namespace moesaic::nn
