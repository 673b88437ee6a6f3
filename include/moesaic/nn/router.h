// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "moesaic/ops/route.h"

namespace moesaic::nn {

struct RouterOptions {
  int64_t width = 0;    ///< d, the tokens' width
  int64_t experts = 0;  ///< E, rows of the router; pruning leaves them (pruning paper, eqs. 5-6)
  TokenChoiceOptions choice;
};

/// A linear token-choice router without bias: logits = x W^T, W = `weight` [E, d]; row s is the w_s
/// whose norm the pruning paper compares.
class RouterImpl : public torch::nn::Module {
 public:
  RouterImpl(RouterOptions options, at::Generator generator);

  /// x_Td [T, d] -> [T, E].
  at::Tensor logits(const at::Tensor& x_Td) const;
  /// logits_TE [T, E] -> who computes which token.
  Routing route(const at::Tensor& logits_TE) const;

  const RouterOptions& options() const { return options_; }
  /// From now on only these experts, of all E, get rows. Ascending.
  void keep(std::vector<int64_t> experts) { options_.choice.kept = std::move(experts); }

  at::Tensor weight;

 private:
  RouterOptions options_;
};
TORCH_MODULE(Router);

}  // namespace moesaic::nn
