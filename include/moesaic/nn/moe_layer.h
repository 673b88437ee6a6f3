// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/nn/experts.h"
#include "moesaic/nn/router.h"

namespace moesaic::nn {

/// Options of a layer whose experts are MLPs, see MlpExpertsOptions and RouterOptions.
struct MoELayerOptions {
  int64_t width = 0;        ///< Width of a token, d.
  int64_t hidden = 0;       ///< Hidden width of an expert, m.
  int64_t num_experts = 0;  ///< Number of experts before pruning, E.
  /// Number of ensemble members, M, each of which uses E / M experts, see RouterOptions.
  int64_t num_members = 1;
  Activation activation = Activation::gelu_tanh;
  bool bfloat16 = false;          ///< Rounds inputs and outputs, see Experts::rounds_to_bfloat16().
  double dropout = 0.0;           ///< Dropout rate of the experts in training.
  bool shared_init = false;       ///< See MlpExpertsOptions.
  RouteOptions rule;              ///< `kept` names the experts that exist; empty means all.
  bool mean_replacement = false;  ///< See MoELayer::replacement_outputs.
  std::vector<int64_t> merged_into = {};  ///< See MoELayer::merged_into.
  NoiseOptions noise = {.scale = 0.0};
  std::optional<uint64_t> evaluation_seed = {};  ///< See RouterOptions.
};

/// Output of a layer, and the record of how its tokens were routed.
struct MoEOutput : RoutingRecord {
  at::Tensor y_Td;          ///< Output [T, o]; o = d where the experts are MLPs.
  at::Tensor embedding_Td;  ///< See ExpertsOutput; undefined where the experts are MLPs.
};

/// Called with the routing and the experts' inputs of a forward pass, before the experts compute.
using RoutingObserver =
    std::function<void(const RoutingRecord& record, const at::Tensor& experts_input)>;

/// Name of MoELayerImpl::replacement_outputs in state dicts; older checkpoints have it, so it
/// stays.
inline constexpr const char* kReplacementOutputsKey = "stand_in";

/// Dispatches the inputs x [T, ...] of a routing's tokens and computes their rows.
ExpertRows expert_rows(Experts& experts, const at::Tensor& x, const Routing& routing,
                       const at::Generator& random);
/// Combines the rows: outputs with their gates, embeddings without.
ExpertsOutput combine_rows(const ExpertRows& rows, const Routing& routing);
/// Runs Experts::fused() on the inputs x [T, ...], or else dispatch, compute() and combine.
ExpertsOutput mixture(Experts& experts, const at::Tensor& x, const Routing& routing,
                      const at::Generator& random);

/// Experts whose operator reads the inputs of a routing's rows itself: nothing is dispatched.
class RoutedExperts : public Experts {
 public:
  std::optional<ExpertsOutput> fused(const at::Tensor& x, const Routing& routing,
                                     const at::Generator&) override {
    return combine_rows(rows_of(x, routing), routing);
  }
  ExpertRows compute(const at::Tensor& rows, const Routing& routing,
                     const at::Generator&) override {
    return rows_of(rows, routing_of_rows(routing));
  }
  ExpertParallel expert_parallel() const override { return ExpertParallel::all_to_all; }

  /// Returns the outputs [A, o] of the routing's rows, whose tokens are of the inputs x [T, ...].
  virtual ExpertRows rows_of(const at::Tensor& x, const Routing& routing) const = 0;
};

/// A mixture-of-experts layer (pruning paper, eqs. 1-3): route, dispatch, experts, combine.
///
///     MoELayer layer(MoELayerOptions{.width = 96, .hidden = 384, .num_experts = 8});
///     at::Tensor y = layer->forward(x).y_Td;  // x and y are [T, 96].
///
/// Where processes share a batch, the output is that of this process' tokens, and the record that
/// of all, unless a part is routed alone, see RouterImpl. Where processes share the experts too,
/// see Experts::shard(), rows are sent to the process of their expert and back.
class MoELayerImpl : public torch::nn::Module {
 public:
  /// Makes a layer of MLPs. The router's initial values are drawn first, then those of the MLPs.
  explicit MoELayerImpl(MoELayerOptions options, uint64_t seed = 0);
  /// Makes a layer of MLPs with values drawn from `generator`.
  MoELayerImpl(const MoELayerOptions& options, at::Generator generator);
  /// Makes a layer of existing experts of any kind; the router's initial values are drawn from
  /// `generator`. Throws Error where there are not as many experts as the router's rule keeps.
  MoELayerImpl(RouterOptions options, std::shared_ptr<Experts> experts, at::Generator generator);

  /// Gives every pruned expert a replacement of zeros; see `replacement_outputs`.
  void add_replacement_outputs();

  /// Runs the layer on x_Td [T, d] float32 or float64, whose rows are of members 0..M-1 in turn.
  /// Router noise and, in training, dropout are drawn from `random`; where it is undefined there is
  /// no dropout, and noise only with `evaluation_seed`.
  MoEOutput forward(const at::Tensor& x_Td, const at::Generator& random = {}) const;
  /// Runs the layer on inputs [T, d] of the router and other inputs [T, ...] of the experts, see
  /// Experts.
  MoEOutput forward(const at::Tensor& router_input_Td, const at::Tensor& experts_input,
                    const at::Generator& random) const;

  /// Removes all experts except these ids, ascending among the E experts of the router. The router
  /// keeps its rows; with PrunedSelection::zero the gates of the kept experts do not change
  /// (pruning paper, eqs. 5-6). With `means` [E, o], the mean outputs of the E experts, those of
  /// the removed ones replace them. Throws Error for an expert that was removed before, for
  /// means where pruned experts cannot be selected, and for none where others have a replacement.
  void keep_experts(const std::vector<int64_t>& ids, const at::Tensor& means = {});

  /// Removes experts that are merged into the kept ones: the kept ones get averages of the present
  /// experts by Experts::average(), and `into` becomes `merged_into`. Throws Error where tokens are
  /// rerouted.
  void merge_experts(const std::vector<int64_t>& ids, std::vector<int64_t> into,
                     const at::Tensor& weights_PP);

  /// Calls `observer` in every later forward pass; an empty function ends that.
  void set_observer(RoutingObserver observer) { observer_ = std::move(observer); }

  /// Returns the ids of the experts that pruning removed, ascending.
  std::vector<int64_t> removed() const {
    return removed_experts(options().rule, options().num_experts);
  }

  /// Returns the ids of the experts that exist, ascending; all E where none was pruned.
  std::vector<int64_t> kept() const { return router->kept(); }
  /// Returns the places among kept() of `merged_into`.
  std::vector<int64_t> merged_slots() const;
  /// Returns whether experts were pruned.
  bool is_pruned() const { return router->is_pruned(); }
  /// Returns the router's options: the number of experts and the routing rule.
  const RouterOptions& options() const { return router->options(); }

  Router router{nullptr};
  std::shared_ptr<Experts> experts;
  /// Mean outputs [E - K, o] of pruned experts, in the order of removed(): a token that selects
  /// such an expert gets its vector, weighted with its gate, in place of its output. Undefined
  /// where removed experts give 0.
  at::Tensor replacement_outputs;
  /// For each of the E experts, the id of the kept expert that computes the tokens that select it,
  /// see routing_to_merged(). Empty where no expert was merged.
  std::vector<int64_t> merged_into;

 private:
  /// Returns mixture() where processes share the experts; embeddings are undefined in training.
  ExpertsOutput shared_mixture(const at::Tensor& x, const RoutingRecord& record,
                               const at::Generator& random) const;
  at::Tensor replacement_of(const RoutingRecord& record) const;

  RoutingObserver observer_;
};
TORCH_MODULE(MoELayer);

/// Returns the replacement outputs of all removed experts, [E - K, o]: mean outputs of those that
/// are removed now, and `old` of those in `gone`, removed before.
at::Tensor merge_replacement_outputs(const at::Tensor& means_Eo, const std::vector<int64_t>& gone,
                                     const at::Tensor& old, const std::vector<int64_t>& kept);

}  // namespace moesaic::nn
