// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/nn/batch_shard.h"
#include "moesaic/ops/route.h"

namespace moesaic {

/// Distribution of router noise.
enum class NoiseKind : int64_t {
  gaussian,  ///< Normal with standard deviation scale / E (V-MoE).
  uniform,   ///< Uniform, scale * U[0, 1) (clusters paper, section 3).
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
NoiseKind noise_kind_from_name(std::string_view name);
/// Returns the enumerators' names in their order.
std::vector<std::string> noise_kind_names();

/// Options of router noise.
struct NoiseOptions {
  NoiseKind kind = NoiseKind::gaussian;  ///< The distribution.
  double scale = 1.0;                    ///< Factor in the distribution's formula; 0: no noise.
};

/// Returns the standard deviation of gaussian noise among `experts` experts, for load_loss().
double gaussian_noise_std(const NoiseOptions& options, int64_t experts);

/// Returns noise [T, E] for logits with such options, of any floating dtype, drawn anew for every
/// token and expert from `generator`, which must be defined and live on the logits' device. The
/// same state of the generator gives the same bits.
at::Tensor router_noise(int64_t tokens, int64_t experts, const at::TensorOptions& tensor,
                        const NoiseOptions& options, const at::Generator& generator);

}  // namespace moesaic

namespace moesaic::nn {

/// Returns the ids of the experts that are not kept, ascending.
std::vector<int64_t> removed_experts(const RouteOptions& rule, int64_t experts);

/// Returns whether a token's routing depends on the other tokens of the call.
bool is_batch_dependent(const RouteOptions& rule);

/// Returns the rows that the router assigns per token for images of `tokens` tokens, without pruned
/// experts and dropped choices; for adaptive routing the maximum. A token that is alone in its
/// image is routed with those of other images: in full groups or, without groups, in the limit of
/// a large batch. Throws Error for a capacity below one row.
double rows_per_token(const RouteOptions& rule, int64_t tokens, int64_t experts);
/// Returns the rows per token of the experts' capacity buffers, full or not: those of full groups
/// or, without groups, in the limit of a large batch, a capacity in rows being for one image. Where
/// the rule is not token choice, or drops nothing, they are rows_per_token().
double capacity_rows_per_token(const RouteOptions& rule, int64_t tokens, int64_t experts);

/// The decisions of a router for a batch, with everything that losses, statistics and pruning need.
/// The router fills it; a model adds the index of the block.
struct RoutingRecord {
  int64_t block = 0;           ///< Index of the block that holds the layer.
  at::Tensor logits_TE;        ///< Logits [T, E], differentiable, without noise; -infinity for
                               ///< experts of other members than the token's.
  at::Tensor noisy_logits_TE;  ///< Logits [T, E] that decided; logits_TE without noise.
  double noise_std = 0.0;      ///< Standard deviation of the gaussian noise drawn; 0 without.
  Routing routing;
  std::vector<int64_t> kept;  ///< Ids of the experts 0..K-1 of the routing.
  bool is_rerouted = false;   ///< Only kept experts are selected, see PrunedSelection.
  int64_t group_size = 0;     ///< Tokens that were routed together; 0 means all.
  int64_t num_members = 1;    ///< Members of an ensemble; token t is of member t % members.
  bool is_local = false;      ///< Whether it has this process' shard of a batch alone.
  /// Processes with the other shards of a batch that the record has the whole of; null: none.
  std::shared_ptr<const ProcessGroup> process_group;

  /// Returns what a routing of these tokens has of those of this process.
  Routing local_rows(const Routing& of_all) const;
};

/// Name of the stream of random numbers that `evaluation_seed` begins.
inline constexpr const char* kEvaluationNoiseStream = "router.evaluation";

/// Sizes, rule and noise of a Router.
struct RouterOptions {
  int64_t width = 0;  ///< Width of a token, d.
  /// Number of experts before pruning, E: rows of `weight`, which pruning keeps (pruning paper,
  /// eqs. 5-6).
  int64_t num_experts = 0;
  /// Number of ensemble members, M; token t is of member m = t % M with the m-th E / M experts.
  int64_t num_members = 1;
  RouteOptions rule;
  NoiseOptions noise = {.scale = 0.0};  ///< Noise on the logits where there is a generator.
  /// Seed of the noise that forward() draws without a generator, see set_first_token_index();
  /// unset: there is no noise without a generator.
  std::optional<uint64_t> evaluation_seed = {};
  /// Whether gates are of the noisy logits; false: noise decides the selection only (token choice
  /// with the gate softmax_all or logit).
  bool gate_noise = true;

  /// Returns the factor that makes noise of numbers that are standard normal, or uniform on [0, 1).
  double noise_scale() const;
};

/// A linear router without bias: logits = x W^T with W = `weight` [E, d]. Row s is the vector w_s
/// whose norm the pruning paper compares.
///
/// Where processes share a batch, each has the tokens of its shard. In training a shard of whole
/// groups is routed alone; otherwise all processes route the tokens of the whole batch, and the
/// record is that of one process. Noise is that of one process in any case.
class RouterImpl : public torch::nn::Module, public DataParallelModule {
 public:
  /// Draws the initial values from `generator`.
  RouterImpl(RouterOptions options, at::Generator generator);

  /// Computes logits of x_Td [T, d] -> [T, E], -infinity for experts of other members than the
  /// token's. Throws Error where the number of members does not divide T.
  at::Tensor logits(const at::Tensor& x_Td) const;
  /// Routes x_Td [T, d]. Draws noise from `random`; where that is undefined, from
  /// `evaluation_seed`, or none. The noise has the standard deviation for E / M experts. With
  /// `needs_whole_batch` a part of a batch is never routed alone.
  RoutingRecord forward(const at::Tensor& x_Td, const at::Generator& random = {},
                        bool needs_whole_batch = false) const;

  /// Returns the routing of the same tokens to all E experts, as before any was pruned.
  Routing route_to_all(const RoutingRecord& record) const;

  /// Sets the index of the first token of later forward passes, initially 0. Noise by
  /// `evaluation_seed` is a function of a token's index.
  void set_first_token_index(int64_t token) { first_token_ = token; }

  /// Replaces the draws of noise by these standard normal numbers [T, E / M] from now on.
  void replay_noise(at::Tensor normal) { replayed_noise_ = std::move(normal); }

  /// Returns the options, with the kept experts of a pruned layer.
  const RouterOptions& options() const { return options_; }
  /// Routes by other options from now on. Throws Error where `weight` has another size.
  void set_options(RouterOptions options);
  /// Returns the rule outside of training.
  RouteOptions evaluation_rule() const;
  /// Routes to only these of the E experts from now on; ids are ascending.
  void keep(const std::vector<int64_t>& experts);
  /// Returns the ids of the experts that get rows, ascending; all E where none was pruned.
  std::vector<int64_t> kept() const;
  /// Returns whether experts were pruned.
  bool is_pruned() const { return !options_.rule.kept.empty(); }

  at::Tensor weight;

 private:
  /// Routes by the record's logits; `rule` says to which experts.
  Routing routed(const RoutingRecord& record, const RouteOptions& rule) const;
  /// Returns the noise of each token's own experts, [T, E / M], of the logits' dtype.
  at::Tensor noise(int64_t tokens, const at::TensorOptions& options,
                   const at::Generator& random) const;

  int64_t first_token_ = 0;
  at::Tensor replayed_noise_;
  RouterOptions options_;
};
TORCH_MODULE(Router);

/// Returns each member's own logits, [M, T / M, E / M], from the logits of all members, [T, E].
at::Tensor member_logits(const at::Tensor& logits_TE, int64_t members);

}  // namespace moesaic::nn
