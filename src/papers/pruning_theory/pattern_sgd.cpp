// SPDX-License-Identifier: Apache-2.0
#include "pattern_sgd.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Patterns that an expert selected of one example.
struct Selected {
  int64_t pattern;
  double tokens;  ///< Number of its tokens among the selected.
  double gate;    ///< Of each.
};

/// One expert: its weights, and what a step does with them.
class PatternExpert {
 public:
  PatternExpert(float* router_d, float* neurons_dm, int64_t patterns, int64_t hidden)
      : router_(router_d), neurons_(neurons_dm), patterns_(patterns), hidden_(hidden) {
    order_.resize(static_cast<size_t>(patterns));
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int64_t a, int64_t b) { return router_[a] > router_[b]; });
    for (int64_t p = 0; p < patterns; ++p) {
      float sum = 0.0F;
      for (int64_t r = 0; r < hidden; ++r) sum += std::max(neurons_[p * hidden + r], 0.0F);
      outputs_.push_back(sum);
    }
    push_.assign(static_cast<size_t>(patterns), 0.0);
    turn_ = push_;
  }

  /// Returns the sum over an example's selected tokens of gate times neurons, and adds `weight`
  /// times its gradient to what the step does.
  double add(const int32_t* counts, int64_t selected, double weight) {
    select(counts, selected);
    double output = 0.0;
    for (const Selected& s : selected_) output += s.tokens * s.gate * outputs_[s.pattern];
    for (const Selected& s : selected_) {
      const double share = weight * s.tokens * s.gate;
      push_[s.pattern] += share;
      turn_[s.pattern] += share * (outputs_[s.pattern] - output);
    }
    return output;
  }

  void step(const PatternSgdOptions& options) {
    for (int64_t p = 0; p < patterns_; ++p) {
      router_[p] += static_cast<float>(options.router_lr * turn_[p]);
      const auto push = static_cast<float>(options.expert_lr * push_[p]);
      if (push == 0.0F) continue;
      float* const row = neurons_ + p * hidden_;
      for (int64_t r = 0; r < hidden_; ++r) row[r] += row[r] > 0.0F ? push : 0.0F;
    }
  }

 private:
  void select(const int32_t* counts, int64_t selected) {
    selected_.clear();
    const double largest = router_[first_of(counts)];
    double sum = 0.0;
    for (size_t i = 0; selected > 0; ++i) {
      const int64_t p = order_[i];
      const int64_t tokens = std::min<int64_t>(counts[p], selected);
      if (tokens == 0) continue;
      selected -= tokens;
      selected_.push_back({p, static_cast<double>(tokens), std::exp(router_[p] - largest)});
      sum += selected_.back().tokens * selected_.back().gate;
    }
    for (Selected& s : selected_) s.gate /= sum;
  }

  int64_t first_of(const int32_t* counts) const {
    size_t i = 0;
    while (counts[order_[i]] == 0) ++i;
    return order_[i];
  }

  float *router_, *neurons_;
  int64_t patterns_, hidden_;
  std::vector<int64_t> order_;   ///< Patterns by falling routing value.
  std::vector<double> outputs_;  ///< Sum of the neurons of each pattern.
  std::vector<double> push_;     ///< Descent of each active neuron of a pattern.
  std::vector<double> turn_;     ///< Descent of the router.
  std::vector<Selected> selected_;
};

}  // namespace

PatternStep pattern_sgd_step(PatternWeights& weights, const PatternBatch& batch,
                             const PatternSgdOptions& options) {
  const int64_t selected = options.num_selected_tokens, tokens = batch.tokens_Bn.size(1);
  if (selected > tokens)
    fail("pattern_sgd: an expert cannot select {} of {} tokens", selected, tokens);
  const int64_t examples = batch.tokens_Bn.size(0), experts = weights.router_Kd.size(0);
  const int64_t patterns = weights.router_Kd.size(1), hidden = weights.neurons_Kdm.size(2);
  // How often each pattern occurs in each example.
  const at::Tensor count_Bd =
      at::zeros({examples, patterns}, at::kInt)
          .scatter_add(1, batch.tokens_Bn.to(at::kLong), at::ones_like(batch.tokens_Bn));
  const auto* const counts = count_Bd.const_data_ptr<int32_t>();
  const auto* y = batch.y_B.const_data_ptr<float>();
  const auto* sign = weights.sign_K.const_data_ptr<float>();
  auto* const router = weights.router_Kd.mutable_data_ptr<float>();
  auto* const neurons = weights.neurons_Kdm.mutable_data_ptr<float>();
  std::vector<double> f(static_cast<size_t>(examples), 0.0);
  // The gradient of 1 - y f does not depend on f, so that each expert moves by itself.
  for (int64_t s = 0; s < experts; ++s) {
    PatternExpert expert(router + s * patterns, neurons + s * patterns * hidden, patterns, hidden);
    for (int64_t b = 0; b < examples; ++b) {
      const double weight = y[b] * sign[s] / static_cast<double>(examples);
      f[static_cast<size_t>(b)] += sign[s] * expert.add(counts + b * patterns, selected, weight);
    }
    expert.step(options);
  }
  PatternStep step;
  for (int64_t b = 0; b < examples; ++b) {
    const double margin = y[b] * f[static_cast<size_t>(b)];
    // NaN is no loss of 0.
    if (!(margin >= 1.0)) step.hinge += (1.0 - margin) / static_cast<double>(examples);
    step.accuracy += (margin > 0.0 ? 1.0 : 0.0) / static_cast<double>(examples);
  }
  return step;
}

}  // namespace moesaic
