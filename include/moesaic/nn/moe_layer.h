// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <vector>

#include "moesaic/nn/experts.h"
#include "moesaic/nn/router.h"
#include "moesaic/ops/activation.h"

namespace moesaic::nn {

/// Options of a layer whose experts are MLPs, see MlpExpertsOptions and RouterOptions.
struct MoELayerOptions {
  int64_t width = 0;    ///< d
  int64_t hidden = 0;   ///< m
  int64_t experts = 0;  ///< E
  int64_t members = 1;  ///< M: of an ensemble; each uses E / M experts, see RouterOptions
  Activation activation = Activation::gelu_tanh;
  bool bfloat16 = false;  ///< see MlpExpertsImpl::forward()
  double dropout = 0.0;   ///< of the experts' units in training
  RoutingRule rule;       ///< `kept` names the experts that exist; empty: all
  NoiseOptions noise = {.scale = 0.0};
  std::optional<uint64_t> evaluation_seed = {};  ///< see RouterOptions
};

/// What a layer computed: its output, and the record of how it was routed.
struct MoEOutput : RoutingRecord {
  at::Tensor y_Td;          ///< [T, o]; o = d where the experts are MLPs
  at::Tensor embedding_Td;  ///< see ExpertsOutput; undefined where the experts are MLPs
};

/// A mixture-of-experts layer (pruning paper, eqs. 1-3): route, dispatch, experts, combine.
///
///     auto layer = moesaic::nn::MoELayer(moesaic::nn::MoELayerOptions{.width = 96, .hidden = 384,
///     .experts = 8}); at::Tensor y = layer->forward(x).y_Td;   // x: [T, 96]
class MoELayerImpl : public torch::nn::Module {
 public:
  /// The router is drawn first, then the MLPs.
  explicit MoELayerImpl(MoELayerOptions options, uint64_t seed = 0);
  MoELayerImpl(const MoELayerOptions& options, at::Generator generator);
  /// A layer of experts of any kind, which exist already, behind a router that is drawn now. Throws
  /// Error where they are not as many as the router's rule keeps.
  MoELayerImpl(RouterOptions options, std::shared_ptr<Experts> experts, at::Generator generator);

  /// x_Td: [T, d] float32 or float64, of members 0..M-1 in turn. The router's noise and, in
  /// training, dropout are drawn from `random`; where it is undefined there is no dropout, and
  /// noise only with `evaluation_seed`.
  MoEOutput forward(const at::Tensor& x_Td, const at::Generator& random = {}) const;
  /// The same where experts see inputs of their own, [T, ...], see Experts.
  MoEOutput forward(const at::Tensor& router_input_Td, const at::Tensor& experts_input,
                    const at::Generator& random) const;

  /// Removes all experts but these, for good; ids count the E experts of the router, ascending. The
  /// router keeps its rows; with PrunedSelection::zero the others' gates do not change (pruning
  /// paper, eqs. 5-6). Throws
  /// Error for an expert that is not there any more.
  void keep_experts(const std::vector<int64_t>& ids);

  /// Ids of the experts that exist, ascending; all E where none was pruned.
  std::vector<int64_t> kept() const { return router->kept(); }
  bool is_pruned() const { return router->is_pruned(); }
  /// The router's, which say how many experts there are and who chooses whom.
  const RouterOptions& options() const { return router->options(); }

  Router router{nullptr};
  std::shared_ptr<Experts> experts;
};
TORCH_MODULE(MoELayer);

}  // namespace moesaic::nn
