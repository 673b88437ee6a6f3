// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/losses.h"

#include <torch/torch.h>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// [G, S, E] float32 gates over all experts. Groups must be full: these are training losses.
at::Tensor grouped_gates(const char* name, const at::Tensor& logits_TE, int64_t group_size) {
  ops::check_shape(name, "logits", logits_TE, {-1, -1});
  const int64_t tokens = logits_TE.size(0);
  const int64_t size = group_size > 0 ? group_size : tokens;
  if (size == 0 || tokens % size != 0) {
    fail("{}: group_size {} must divide the {} tokens", name, size, tokens);
  }
  return at::softmax(logits_TE.to(at::kFloat), -1).view({tokens / size, size, -1});
}

}  // namespace

at::Tensor importance_loss(const at::Tensor& logits_TE, int64_t group_size) {
  const at::Tensor importance_GE = grouped_gates("importance_loss", logits_TE, group_size).sum(1);
  const at::Tensor mean_G = importance_GE.mean(1);
  return (importance_GE.var(1, /*unbiased=*/false) / mean_G.square()).mean();
}

at::Tensor gshard_loss(const at::Tensor& logits_TE, int64_t group_size) {
  const at::Tensor gates_GSE = grouped_gates("gshard_loss", logits_TE, group_size);
  const int64_t experts = gates_GSE.size(2);
  const at::Tensor share_GE = at::one_hot(gates_GSE.argmax(2), experts).to(at::kFloat).mean(1);
  const at::Tensor loss_G =
      (share_GE * gates_GSE.mean(1)).mean(1) * static_cast<double>(experts * experts);
  return loss_G.mean();
}

}  // namespace moesaic
