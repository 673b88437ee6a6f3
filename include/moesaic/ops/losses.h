// SPDX-License-Identifier: Apache-2.0
// Losses. Losses of routers are auxiliary: each returns a float32 scalar, differentiable in the
// logits. Logits are [T, E] floating; `group_size` tokens form a group (0: all tokens form one),
// which must divide T, and a loss is the mean over groups. CV^2(v) = var(v) / mean(v)^2 is over
// experts, with a variance of divisor E.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace moesaic {

/// Returns the importance loss (V-MoE): CV^2 of the sum over tokens of softmax(logits), for logits
/// without noise.
at::Tensor importance_loss(const at::Tensor& logits_TE, int64_t group_size);

/// Returns the load loss (V-MoE) of how evenly a second draw of the noise would spread the tokens:
/// CV^2 of the mean over tokens of p_e = 1 - Phi((tau - logit_e) / std), with tau the k-th largest
/// noisy logit of a token. The gradient also flows through tau.
at::Tensor load_loss(const at::Tensor& logits_TE, const at::Tensor& noisy_logits_TE, int64_t k,
                     double noise_std, int64_t group_size);

/// Returns the load-balancing loss of GShard: E^2 times the mean over experts of (fraction of
/// tokens whose best gate is the expert's) * (mean gate of the expert), on the logits that dispatch
/// uses; the fraction is a constant for the gradient.
at::Tensor gshard_loss(const at::Tensor& logits_TE, int64_t group_size);

/// Proxy for the load in the differentiable factor of switch_balance_loss().
enum class BalanceProxy {
  probability,  ///< Softmax(logits) (switch transformer, eq. 4-6).
  logit,        ///< The logit itself (clusters paper's released code).
};

/// Returns the load-balancing loss of switch routing: E times the sum over experts of (fraction of
/// tokens that select the expert first) * (mean over tokens of its proxy), on the logits of
/// dispatch, noise included; the fraction is a constant for the gradient. With `probability` this
/// is gshard_loss().
at::Tensor switch_balance_loss(const at::Tensor& logits_TE, int64_t group_size,
                               BalanceProxy proxy = BalanceProxy::probability);

/// Returns the router z-loss (ST-MoE, eq. 5): mean over tokens of logsumexp(logits)^2.
at::Tensor router_z_loss(const at::Tensor& logits_TE, int64_t group_size);

/// Computes the cross entropy of each row with the class that its label names: -log
/// softmax(logits)[label]. `applies_softmax_twice` applies softmax to the probabilities again, -log
/// softmax(softmax(logits))[label], as the released code of the clusters paper does: the loss of
/// two classes lies between 0.3133 and 1.3133.
///
/// logits_NC: [N, C] of any floating type, computed in at least float32, labels_N: [N] int64 from 0
/// to C - 1. Returns [N], NaN where a logit is NaN or none is finite. Differentiable in the logits.
/// Throws Error for other shapes and dtypes, and ATen's error for other labels.
at::Tensor cross_entropy(const at::Tensor& logits_NC, const at::Tensor& labels_N,
                         bool applies_softmax_twice = false);

}  // namespace moesaic
