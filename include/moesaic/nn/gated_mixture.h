// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <memory>
#include <string>

#include "moesaic/ops/link.h"

namespace moesaic::nn {

struct GatedMixtureOptions {
  int64_t width = 10, experts = 2;
  Link link = Link::identity;
  double noise = 0.05;  ///< sigma of the outputs, which likelihoods need.
};

/// The gated mixture of "Learning in Gated Neural Networks" (eq. 1): expert i outputs g(<a_i, x>),
/// and P[z_i = 1 | x] = softmax_i(<w_1, x>, ..., <w_k-1, x>, 0).
class GatedMixtureImpl : public torch::nn::Module {
 public:
  /// Regressors are random unit vectors, gates 0: every expert is as probable.
  GatedMixtureImpl(GatedMixtureOptions options, const at::Generator& generator);

  /// Returns E[y | x] [B], x: [B, d].
  at::Tensor forward(const at::Tensor& x_Bd) const;
  /// Returns P[z | x] [B, k].
  at::Tensor probabilities(const at::Tensor& x_Bd) const;
  /// Returns the experts' outputs [B, k].
  at::Tensor outputs(const at::Tensor& x_Bd) const;

  const GatedMixtureOptions& options() const { return options_; }

  at::Tensor regressors;  ///< a_i, [k, d]
  at::Tensor gates;       ///< w_i, [k - 1, d]; w_k = 0

 private:
  GatedMixtureOptions options_;
};
TORCH_MODULE(GatedMixture);

/// Returns the gated mixture within a network, or null.
std::shared_ptr<GatedMixtureImpl> find_gated_mixture(const torch::nn::Module& network);

/// How a GRU's candidate state is computed; both agree for reset gates of 0 and 1 only.
enum class GruView {
  mixture,    ///< (1 - r) g(U x + b) + r g(U x + b + W h + c), a mixture of two experts.
  recurrent,  ///< g(U x + b + r (W h + c)), as torch::nn::GRU computes it.
};

inline constexpr std::array<const char*, 2> kGruViewNames = {"mixture", "recurrent"};

/// Hidden states and gates of every step, [B, T, m].
struct GruStates {
  at::Tensor states, update, reset;
};

/// A gated recurrent unit as a hierarchical mixture of experts of depth 2 ("Learning in Gated
/// Neural Networks", section 2, eq. 5): h_t = (1 - z) h_t-1 + z c_t mixes keeping the state with
/// the candidate c_t, which is itself a mixture of forgetting the state and using it. g is tanh.
///
/// The printed W (r h) is no mixture of W h and nothing; PyTorch's r (W h + c) is. Parameters are
/// those of torch::nn::GRU with its names' order (reset, update, candidate), and its update gate is
/// 1 - z: z = sigmoid(-(U_z x + b_z + W_z h + c_z)).
class GruMixtureImpl : public torch::nn::Module {
 public:
  GruMixtureImpl(int64_t width, int64_t hidden, GruView view, const at::Generator& generator);

  /// Runs over sequences [B, T, d], from a state of zeros.
  GruStates forward(const at::Tensor& x_BTd) const;

  GruView view() const { return view_; }

  at::Tensor weight_ih;  ///< [3 m, d]
  at::Tensor weight_hh;  ///< [3 m, m]
  at::Tensor bias_ih;    ///< [3 m]
  at::Tensor bias_hh;    ///< [3 m]

 private:
  GruView view_;
};
TORCH_MODULE(GruMixture);

}  // namespace moesaic::nn
