// SPDX-License-Identifier: Apache-2.0
// Importance scores of experts; the experts with the highest scores are kept.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/models/model.h"

namespace moesaic {

// Statistics of a network's experts on calibration images, for criteria that need images.

/// Exponents of a term g^a ||E(x)||^b of a routed row: its gate g and the norm of its expert's
/// output.
struct Powers {
  int gate = 0, norm = 0;
  auto operator<=>(const Powers&) const = default;
};

/// Statistics of a layer's experts: sums over the tokens that the layer routed, [E] float64 by the
/// experts' ids; 0 for pruned experts.
struct LayerStatistics {
  int64_t tokens = 0;
  std::map<Powers, at::Tensor> sums;  ///< Over an expert's rows, of the terms that criteria
                                      ///< sum or mean over.
  at::Tensor selections;              ///< Tokens that select the expert, with those dropped there.
  at::Tensor first_gates;  ///< Over tokens whose first choice it is, and that it computes, of their
                           ///< gates; where tokens do not choose, of their largest gates.
  at::Tensor outputs_Eo;   ///< Over an expert's rows, of its output, [E, o].
  at::Tensor gated_Eo;     ///< Over an expert's rows, of gate times output, [E, o].
  at::Tensor products_EE;  ///< G: over tokens, of the inner products <g_e y_e, g_f y_f> of two
                           ///< experts' gated outputs, [E, E]; 0 where a token has no row.

  /// Returns the mean output of each expert over its rows, [E, o]; 0 without rows.
  at::Tensor mean_outputs_Eo() const {
    return outputs_Eo / sums.at({0, 0}).clamp_min(1.0).unsqueeze(1);
  }
};

/// Returns the statistics of a layer of so many experts before the first token: sums of 0; those of
/// outputs are undefined.
LayerStatistics empty_statistics(int64_t experts);

/// Statistics of the experts of each MoE layer, by block.
using ExpertStatistics = std::map<int64_t, LayerStatistics>;

/// Collects the statistics of a network's experts in all forward passes during its lifetime, which
/// compute every expert twice.
class ExpertStatisticsMeter {
 public:
  /// Observes the MoE layers of `model`.
  explicit ExpertStatisticsMeter(const Model& model);
  ~ExpertStatisticsMeter();
  ExpertStatisticsMeter(const ExpertStatisticsMeter&) = delete;
  ExpertStatisticsMeter& operator=(const ExpertStatisticsMeter&) = delete;

  /// Returns the sums so far.
  const ExpertStatistics& statistics() const { return statistics_; }

 private:
  std::vector<MoEBlock> blocks_;
  ExpertStatistics statistics_;
};

/// What the experts of a layer are scored by.
struct ScoreInput {
  const MoEBlock& finetuned;
  const MoEBlock* pretrained = nullptr;         ///< The layer before fine-tuning.
  const LayerStatistics* statistics = nullptr;  ///< Of `finetuned` on calibration images.
  uint64_t seed = 0;
  nn::ParameterReader finetuned_values = nn::read_parameter;
  nn::ParameterReader pretrained_values = nn::read_parameter;
};

/// A criterion that ranks experts.
struct Criterion {
  std::string name;
  bool needs_pretrained = false, needs_images = false;
  std::vector<double> (*score)(const ScoreInput& input) = nullptr;
  std::string description;  ///< Meaning of an expert's score, in a few words.
  /// Whether layers keep the best_subset() in place of the best scores.
  bool selects_subset = false;
};

/// Returns all criteria. Of a layer with the router rows w_s, the experts E_s, and over calibration
/// images the T tokens x with gates g_s(x), of which T_s are routed to s:
///
///   router-norm-change       ||w_s fine-tuned|| - ||w_s pretrained||, signed (paper, sec. 3.2)
///   router-magnitude         ||w_s|| (sec. 5, II)
///   neuron-magnitude         mean over the expert's neurons of the norm of their incoming weights,
///                            see nn::neuron_magnitude() (sec. 5, III); alias: magnitude
///   neuron-magnitude-change  the same fine-tuned, less pretrained, signed (sec. 5, IV)
///   importance               sum of the gates of the tokens whose first choice is s and that it
///                            computes, over T: their fraction times their mean gate (sec. 5, I)
///   load                     fraction of the tokens that select s, dropped ones included
///   frequency                T_s / T
///   gate                     mean over T_s of g
///   reap                     mean over T_s of g ||E_s(x)|| (arXiv 2510.13999)
///   man, msan                means over T_s of ||E_s(x)|| and ||E_s(x)||^2 (arXiv 2606.15716)
///   gate-sum, reap-sum,      sums over T_s of the same, over T: the means times frequency, which
///   man-sum, msan-sum        is the sum of 1
///   output-variance          sum over T of ||g y||^2, over T, less ||mean over T of g y||^2, where
///                            g y = g_s(x) E_s(x) is 0 for tokens that are not routed to s: the
///                            error per token of a constant in place of the expert
///   output-error             G[s, s] / T, the error per token without s alone; see best_subset()
///   aimer                    -mean |w| / sqrt(mean w^2) of the expert's weights, without biases
///                            (arXiv 2603.18492)
///   random                   uniform on [0, 1), a function of seed, block and expert only
///
/// The paper is the pruning paper. Norms are Euclidean and accumulated in float64.
const std::vector<Criterion>& criteria();

/// Returns the names of all criteria.
std::vector<std::string> criterion_names();

/// Returns the `count` of the `present` experts, all among [begin, end), that leave the smallest
/// error of the layer's output, where removed experts R (those of [begin, end) that are not kept)
/// contribute zero:
///
///     sum_t || sum_{e in R} g_e y_e(x_t) ||^2 = sum_{e, f in R} G[e, f],  G = products_EE
///
/// Searches all subsets where there are at most a million, else removes one expert after the other
/// where it costs least. Of equal errors the first subset in the order of indices wins.
std::vector<int64_t> best_subset(const at::Tensor& products_EE, int64_t begin, int64_t end,
                                 const std::vector<int64_t>& present, int64_t count);

/// Returns the criterion of this name. Throws Error (usage) with the nearest name for an unknown
/// one.
const Criterion& criterion_of(const std::string& name);

/// Returns the scores [E] of the experts of one layer, including pruned ones; an expert whose
/// weights were removed has 0 by them (-1 by aimer), and the sums of no rows. Throws Error (usage)
/// for an unknown criterion and for a pretrained layer or calibration that it needs and that is
/// missing, Error with the block and both shapes if the layers differ.
std::vector<double> expert_scores(const std::string& criterion, const ScoreInput& input);

}  // namespace moesaic
