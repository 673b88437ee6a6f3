// SPDX-License-Identifier: Apache-2.0
// An option of a routing is added in four places, here as for expert choice and adaptive routing: in
// the options struct below, with its meaning; in the schema (src/ops/route_token_choice.cpp), where
// Python sees it, at the end and with the same default; in pack() and unpack()
// (src/ops/route_arguments.h); and in the kernels, which get the struct.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moesaic/ops/capacity.h"
#include "moesaic/ops/pruned_selection.h"
#include "moesaic/ops/routing.h"

namespace moesaic {

/// What weighs an expert's output.
enum class Gate : int64_t {
  softmax_selected,  ///< softmax over the k selected: a token's gates sum to 1 (pruning paper, eq.
                     ///< 3)
  softmax_all,  ///< softmax over all E, then the top k (released V-MoE, and with k = 1 the switch):
                ///< gates of the selected sum to less than 1
  logit,        ///< the selected logit itself (clusters paper's released code)
  one,          ///< 1
};

/// Throws Error (usage) naming the nearest valid name for an unknown one.
Gate gate_from_name(std::string_view name);
/// Names in the order of the enumerators.
std::vector<std::string> gate_names();

/// Options of token-choice routing.
struct TokenChoiceOptions {
  int64_t k = 2;                   ///< experts that a token selects
  Gate gate = Gate::softmax_all;   ///< what weighs their outputs
  double capacity_factor = 0.0;    ///< 0: dropless; else see expert_capacity()
  int64_t group_size = 0;          ///< tokens that share a capacity, the last group those that
                                   ///< are left; 0: all of the call
  std::vector<int64_t> kept = {};  ///< experts that are computed, ascending; empty: all
  bool batch_priority = false;     ///< tokens queue by falling first gate instead of by position
  PrunedSelection pruned = PrunedSelection::zero;  ///< how tokens see experts that are not kept
  CapacityRounding capacity_rounding = CapacityRounding::ceil;
  int64_t capacity_multiple_of = 4;
  int64_t capacity = 0;  ///< rows of an expert in a group, in place of the factor; 0: by the factor
};

/// Token-choice top-k routing (pruning paper, eqs. 1-3 and, with `kept`, eqs. 5-6); with k = 1 the
/// switch routing of the clusters paper (its noise: router_noise.h).
///
/// logits_TE: [T, E] float32 or float64. Choices are by logit; ties go to the lower expert. With a
/// capacity, all first choices of a group queue before its second choices; each rank queues in
/// token order or, with `batch_priority`, by the gate of the token's first choice, equal gates in
/// token order. What finds its expert full is dropped. Deterministic; gradients flow through the
/// gates. Throws Error for wrong shapes, k > E (or k > kept with `reroute`), logits that are NaN or
/// +infinity, a token without a finite logit, a bad `kept`, or both a capacity and a factor. A GPU
/// cannot report logits without waiting for them: there, NaN counts as -infinity and a token whose
/// logits would be refused gets gates of NaN.
Routing route_token_choice(const at::Tensor& logits_TE, const TokenChoiceOptions& options);

}  // namespace moesaic
