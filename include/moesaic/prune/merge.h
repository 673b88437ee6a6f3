// SPDX-License-Identifier: Apache-2.0
// Merging of removed experts into kept ones (M-SMoE, arXiv 2310.01334; HC-SMoE, arXiv 2410.08589).
#pragma once

#include "moesaic/prune/plan.h"

namespace moesaic {

/// What merging makes of a layer's experts.
struct MergePlan {
  std::vector<int64_t> into;  ///< c: of each of the E experts the kept one that takes its tokens.
  at::Tensor weights_PP;  ///< Weights of the P present experts in each of them, float64; rows sum
                          ///< to 1, and those of experts that are removed mean nothing.
};

/// Returns how the removed experts of a layer are merged into the kept ones of the plan, each
/// within its group (in an ensemble, its member). With the mean output m_e of an expert over its
/// n_e rows of the calibration images,
///
///     c(e) = argmax over kept k of <m_e, m_k> / (|m_e| |m_k|),  c(k) = k
///     W_k  <- sum_{e: c(e) = k} n_e W_e / sum_{e: c(e) = k} n_e
///
/// for all weights and biases W; where no expert of a sum has a row, W_k stays. The lower index
/// wins a tie. Neurons are not permuted first, as in HC-SMoE. The router keeps its rows, and tokens
/// select among all E experts with the gates of before; tokens of a removed expert go to the one
/// that it is merged into, which computes a token once:
///
///     y(x) = sum_k (sum_{e selected by x, c(e) = k} g_e(x)) E_k(x)
///
/// Capacities are those of the E experts, each for the tokens that select it. An expert that was
/// merged before goes where that one goes. Without means in the plan, of a network on the meta
/// device, the first kept expert of each group takes all.
MergePlan plan_merge(const MoEBlock& block, const PruneLayerPlan& layer);

}  // namespace moesaic
