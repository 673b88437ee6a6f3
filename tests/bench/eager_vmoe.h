// SPDX-License-Identifier: Apache-2.0
// V-MoE as a PyTorch user would write it, with nothing but ATen, over the weights of one of ours.
#pragma once

#include <map>

#include "eager_moe.h"
#include "moesaic/models/vmoe/vmoe.h"

namespace moesaic::bench {

class EagerVMoE {
 public:
  enum class Loop { masked, sorted };  ///< how a layer goes through its experts

  /// Copies the weights of `model`, which routes to the best k of all experts and drops nothing;
  /// those of experts in the order of at::linear where `turned`.
  EagerVMoE(const VMoE& model, Loop loop, bool turned);

  /// images_BCHW -> logits [B, classes].
  at::Tensor forward(const at::Tensor& images_BCHW) const;

  std::vector<at::Tensor> parameters() const;

 private:
  const at::Tensor& of(const std::string& name) const { return weights_.at(name); }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const;
  at::Tensor layer_norm(const at::Tensor& x, const std::string& name) const;
  at::Tensor attention(const at::Tensor& x_BTd, const std::string& name) const;
  at::Tensor experts(const at::Tensor& x_BTd, const std::string& name) const;
  at::Tensor block(const at::Tensor& x_BTd, int64_t index) const;

  VMoEConfig config_;
  Loop loop_;
  std::map<std::string, at::Tensor> weights_;
};

}  // namespace moesaic::bench
