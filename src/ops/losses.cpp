// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/losses.h"

#include <torch/library.h>
#include <torch/torch.h>

#include <numbers>

#include "check.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Returns [G, S, E] float32, or float64 where the logits are, so that sums are at least float32.
/// Groups must be full: these are training losses.
at::Tensor grouped_logits(const char* name, const at::Tensor& logits_TE, int64_t group_size) {
  ops::check_shape(name, "logits", logits_TE, {-1, -1});
  if (!logits_TE.is_floating_point()) {
    fail("{}: logits must be floating, found {}", name, c10::toString(logits_TE.scalar_type()));
  }
  if (logits_TE.size(1) < 1) fail("{}: there must be an expert", name);
  if (group_size < 0) fail("{}: group_size must not be negative: {}", name, group_size);
  const int64_t tokens = logits_TE.size(0), size = group_size > 0 ? group_size : tokens;
  if (size == 0 || tokens % size != 0) {
    fail("{}: group_size {} must divide the {} tokens", name, size, tokens);
  }
  const auto type = logits_TE.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return logits_TE.to(type).reshape({tokens / size, size, logits_TE.size(1)});
}

at::Tensor squared_variation(const at::Tensor& values_GE) {
  return values_GE.var(1, /*unbiased=*/false) / values_GE.mean(1).square();
}

at::Tensor balance(const at::Tensor& logits_GSE, const at::Tensor& proxy_GSE) {
  // The fraction of a group's tokens whose best expert this is, a constant. Like routing, argmax
  // takes the first of equal values.
  const at::Tensor first_GE =
      at::one_hot(logits_GSE.argmax(2), logits_GSE.size(2)).to(logits_GSE.dtype()).mean(1);
  const at::Tensor loss_G = (first_GE * proxy_GSE.mean(1)).sum(1);
  return (loss_G.mean() * static_cast<double>(logits_GSE.size(2))).to(at::kFloat);
}

}  // namespace

at::Tensor importance_loss(const at::Tensor& logits_TE, int64_t group_size) {
  const at::Tensor logits_GSE = grouped_logits("importance_loss", logits_TE, group_size);
  return squared_variation(logits_GSE.softmax(-1).sum(1)).mean().to(at::kFloat);
}

at::Tensor load_loss(const at::Tensor& logits_TE, const at::Tensor& noisy_logits_TE, int64_t k,
                     double noise_std, int64_t group_size) {
  constexpr const char* kOp = "load_loss";
  const at::Tensor logits_GSE = grouped_logits(kOp, logits_TE, group_size);
  ops::check_shape(kOp, "noisy_logits", noisy_logits_TE, {logits_TE.size(0), logits_TE.size(1)});
  // Noise is drawn in float32 where logits have fewer digits.
  ops::check_same_dtype(kOp, "noisy_logits", ops::halves_in_float32(noisy_logits_TE),
                        ops::halves_in_float32(logits_TE));
  ops::check_same_device(kOp, "noisy_logits", noisy_logits_TE, logits_TE);
  if (k < 1 || k > logits_TE.size(1)) {
    fail("{}: k must be between 1 and the {} experts, found {}", kOp, logits_TE.size(1), k);
  }
  if (!(noise_std > 0.0)) fail("{}: noise_std must be positive, found {}", kOp, noise_std);
  const at::Tensor noisy_GSE = grouped_logits(kOp, noisy_logits_TE, group_size);
  // A stable sort sends the gradient of equal thresholds to the expert that routing selects.
  const at::Tensor order = at::argsort(noisy_GSE.detach(), /*stable=*/true, -1, true);
  const at::Tensor threshold_GS1 = noisy_GSE.gather(-1, order.narrow(-1, k - 1, 1));
  const at::Tensor p_GSE =
      0.5 * at::erfc((threshold_GS1 - logits_GSE) / (noise_std * std::numbers::sqrt2));
  return squared_variation(p_GSE.mean(1)).mean().to(at::kFloat);
}

at::Tensor gshard_loss(const at::Tensor& logits_TE, int64_t group_size) {
  const at::Tensor logits_GSE = grouped_logits("gshard_loss", logits_TE, group_size);
  // GShard's loss is E^2 times the mean over E experts.
  return balance(logits_GSE, logits_GSE.softmax(-1));
}

at::Tensor switch_balance_loss(const at::Tensor& logits_TE, int64_t group_size,
                               BalanceProxy proxy) {
  const at::Tensor logits_GSE = grouped_logits("switch_balance_loss", logits_TE, group_size);
  const bool logit = proxy == BalanceProxy::logit;
  return balance(logits_GSE, logit ? logits_GSE : logits_GSE.softmax(-1));
}

at::Tensor router_z_loss(const at::Tensor& logits_TE, int64_t group_size) {
  const at::Tensor logits_GSE = grouped_logits("router_z_loss", logits_TE, group_size);
  return logits_GSE.logsumexp({2}).square().mean().to(at::kFloat);
}

// The formula in ATen's operators, which have the gradients and the kernels of every device.
at::Tensor cross_entropy(const at::Tensor& logits_in_NC, const at::Tensor& labels_N,
                         bool applies_softmax_twice) {
  constexpr const char* kOp = "cross_entropy";
  const at::Tensor logits_NC = ops::halves_in_float32(logits_in_NC);
  ops::check_shape(kOp, "logits", logits_NC, {-1, -1});
  ops::check_floating(kOp, "logits", logits_NC);
  if (logits_NC.sym_size(1) < 1) fail("{}: there must be a class", kOp);
  ops::check_shape(kOp, "labels", labels_N, {logits_NC.sym_size(0)});
  ops::check_same_device(kOp, "labels", labels_N, logits_NC);
  if (labels_N.scalar_type() != at::kLong) {
    fail("{}: labels must be int64, found {}", kOp, c10::toString(labels_N.scalar_type()));
  }
  const at::Tensor log_p_NC =
      (applies_softmax_twice ? logits_NC.softmax(1) : logits_NC).log_softmax(1);
  return log_p_NC.gather(1, labels_N.unsqueeze(1)).squeeze(1).neg();
}

namespace {

TORCH_LIBRARY_FRAGMENT(moesaic, m) {
  m.def("cross_entropy(Tensor logits, Tensor labels, bool twice=False) -> Tensor", cross_entropy);
}

}  // namespace

}  // namespace moesaic
