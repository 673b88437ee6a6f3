// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <vector>

#include "moesaic/nn/routing_record.h"
#include "moesaic/nn/routing_rule.h"
#include "moesaic/ops/router_noise.h"

namespace moesaic::nn {

struct RouterOptions {
  int64_t width = 0;    ///< d, the tokens' width
  int64_t experts = 0;  ///< E, rows of the router; pruning leaves them (pruning paper, eqs. 5-6)
  int64_t members = 1;  ///< M: token t is of member t % M, whose experts are the m-th E / M
  RoutingRule rule;
  NoiseOptions noise = {.scale = 0.0};  ///< added to the logits where there is a generator
  std::optional<uint64_t> evaluation_seed =
      {};  ///< where there is none too, see set_first_sample_index()
};

/// A linear router without bias: logits = x W^T, W = `weight` [E, d]; row s is the w_s whose norm
/// the pruning paper compares.
class RouterImpl : public torch::nn::Module {
 public:
  RouterImpl(RouterOptions options, at::Generator generator);

  /// x_Td [T, d] -> [T, E]; -infinity for the experts of other members than the token's. Throws
  /// Error where the members do not divide T.
  at::Tensor logits(const at::Tensor& x_Td) const;
  /// Draws noise from `random`; where it is undefined, from `evaluation_seed`, or none. Its
  /// deviation is that of E / M experts.
  RoutingRecord forward(const at::Tensor& x_Td, const at::Generator& random = {}) const;

  /// Noise by `evaluation_seed` is a function of a token's number. From now on the first token of a
  /// forward pass has this one; 0 at first.
  void set_first_sample_index(int64_t token) { first_token_ = token; }

  /// From now on noise is not drawn: these standard normal numbers [T, E / M] stand for the draws.
  void replay_noise(at::Tensor normal) { replayed_noise_ = std::move(normal); }

  const RouterOptions& options() const { return options_; }
  /// From now on only these experts, of all E, get rows. Ascending.
  void keep(const std::vector<int64_t>& experts);
  /// Ids of the experts that get rows, ascending; all E where none was pruned.
  std::vector<int64_t> kept() const;
  bool is_pruned() const { return !kept_experts(options_.rule).empty(); }

  at::Tensor weight;

 private:
  at::Tensor with_noise(const at::Tensor& logits_TE, const at::Generator& random) const;
  at::Tensor evaluation_noise(int64_t tokens) const;

  int64_t first_token_ = 0;
  at::Tensor replayed_noise_;
  RouterOptions options_;
};
TORCH_MODULE(Router);

/// Each member's own logits, [M, T / M, E / M], from those of all, [T, E].
at::Tensor own_logits(const at::Tensor& logits_TE, int64_t members);

}  // namespace moesaic::nn
