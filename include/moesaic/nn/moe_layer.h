// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <vector>

#include "moesaic/nn/experts.h"
#include "moesaic/nn/router.h"

namespace moesaic::nn {

struct MoELayerOptions {
  int64_t width = 0;    ///< d
  int64_t hidden = 0;   ///< m
  int64_t experts = 0;  ///< E
  int64_t members = 1;  ///< M: of an ensemble; each uses E / M experts, see RouterOptions
  Activation activation = Activation::gelu_tanh;
  bool bfloat16 = false;  ///< see ExpertsImpl::forward()
  double dropout = 0.0;   ///< of the experts' units in training
  RoutingRule rule;       ///< `kept` names the experts that exist; empty: all
  NoiseOptions noise = {.scale = 0.0};
  std::optional<uint64_t> evaluation_seed = {};  ///< see RouterOptions
};

/// What a layer computed: its output and everything that losses, statistics and pruning want to
/// know.
struct MoEOutput {
  at::Tensor y_Td;             ///< [T, d]
  at::Tensor logits_TE;        ///< [T, E], without noise; -infinity for other members' experts
  at::Tensor noisy_logits_TE;  ///< [T, E], those that decided; the same tensor without noise
  Routing routing;
};

/// A mixture-of-experts layer (pruning paper, eqs. 1-3): route, dispatch, experts, combine.
///
///     auto layer = moesaic::nn::MoELayer(moesaic::nn::MoELayerOptions{.width = 96, .hidden = 384,
///     .experts = 8}); at::Tensor y = layer->forward(x).y_Td;   // x: [T, 96]
class MoELayerImpl : public torch::nn::Module {
 public:
  explicit MoELayerImpl(MoELayerOptions options, uint64_t seed = 0);
  MoELayerImpl(MoELayerOptions options, at::Generator generator);

  /// x_Td: [T, d] float32 or float64, of members 0..M-1 in turn. The router's noise and, in
  /// training, dropout are drawn from `random`; where it is undefined there is no dropout, and
  /// noise only with `evaluation_seed`.
  MoEOutput forward(const at::Tensor& x_Td, const at::Generator& random = {}) const;

  /// Removes all experts but these, for good; ids count the E experts of the router, ascending. The
  /// router keeps its rows; with PrunedSelection::zero the others' gates do not change (pruning
  /// paper, eqs. 5-6). Throws
  /// Error for an expert that is not there any more.
  void keep_experts(const std::vector<int64_t>& ids);

  /// Ids of the experts that exist, ascending; all E where none was pruned.
  std::vector<int64_t> kept() const;
  bool is_pruned() const { return !kept_experts(router->options().rule).empty(); }
  const MoELayerOptions& options() const { return options_; }

  Router router{nullptr};
  Experts experts{nullptr};

 private:
  MoELayerOptions options_;
};
TORCH_MODULE(MoELayer);

}  // namespace moesaic::nn
