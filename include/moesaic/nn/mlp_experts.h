// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include <array>
#include <mutex>

#include "moesaic/nn/experts.h"
#include "moesaic/ops/routed_mlp.h"

namespace moesaic::nn {

/// Weights of experts laid out for inference on the CPU (pack_experts()), kept while the weights
/// stay the same. Weights are laid out at their second call, in int8 (quantise_experts()) at the
/// first. May be called from several threads.
class PackedExperts {
 public:
  /// Returns the weights in `type`, packed where they are those of the last call.
  ExpertWeights get(const ExpertWeights& weights, at::ScalarType type);

  /// Frees what is kept.
  void clear();

 private:
  std::mutex mutex_;
  std::array<at::Tensor, 4> seen_;  // Aliases, which keep the memory from being used again.
  std::array<int64_t, 4> versions_{};
  ExpertWeights packed_;
};

/// Sizes and arithmetic of MlpExperts.
struct MlpExpertsOptions {
  int64_t num_experts = 0;  ///< Number of experts that are computed, K.
  int64_t width = 0;        ///< Width of a token, d.
  int64_t hidden = 0;       ///< Hidden width, m.
  Activation activation = Activation::gelu_tanh;
  bool bfloat16 = false;     ///< See rounds_to_bfloat16(), which use_int8() ends.
  double dropout = 0.0;      ///< Rate for hidden units and outputs in training.
  bool shared_init = false;  ///< All experts start from the same draw.
};

/// Experts that are two-layer MLPs with stacked weights (pruning paper, eq. 1): w1 [K, d, m],
/// b1 [K, m], w2 [K, m, d], b2 [K, d].
class MlpExpertsImpl : public Experts, public DataParallelModule {
 public:
  /// Draws the initial values from `generator`.
  MlpExpertsImpl(MlpExpertsOptions options, at::Generator generator);

  /// Computes x_Td [T, d] -> [T, d] in one operator where nothing is rounded or dropped. Without
  /// gradients and on the CPU, weights are kept packed from the second call on, in the precision of
  /// autocast if there is one: a copy that a call with gradients frees.
  std::optional<ExpertsOutput> fused(const at::Tensor& x_Td, const Routing& routing,
                                     const at::Generator& random) override;
  ExpertRows compute(const at::Tensor& rows_Ad, const Routing& routing,
                     const at::Generator& random) override;
  bool rounds_to_bfloat16() const override { return options_.bfloat16 && !is_int8_; }
  ExpertParallel expert_parallel() const override { return ExpertParallel::all_to_all; }
  int64_t num_experts() const override { return w1.size(0); }
  int64_t num_outputs() const override { return w2.size(2); }
  double flops_per_row() const override {
    return 2.0 * static_cast<double>(w1.size(1) * w1.size(2) + w2.size(1) * w2.size(2));
  }
  ExpertMatrices matrices(int64_t slot, const ParameterReader& values) const override {
    return {.hidden = {values(w1)[slot].t()}, .others = {values(w2)[slot].t()}};
  }
  void use_int8() override;
  ExpertsScript script_source() const override;

  /// Returns the options.
  const MlpExpertsOptions& options() const { return options_; }

  at::Tensor w1, b1, w2, b2;

 private:
  /// Returns the generator of dropout, undefined where nothing is dropped.
  at::Generator drops(const at::Generator& random) const;
  /// Returns the weights for routed_mlp() in its precision.
  ExpertWeights weights_for();

  MlpExpertsOptions options_;
  PackedExperts packed_;
  bool is_int8_ = false;
};
TORCH_MODULE(MlpExperts);

}  // namespace moesaic::nn
