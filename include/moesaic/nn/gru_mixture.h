// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <string>

namespace moesaic::nn {

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
