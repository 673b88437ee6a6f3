// SPDX-License-Identifier: Apache-2.0
// A step of Algorithm 1 of the pruning paper on a batch of given examples, on one thread, at the
// sizes of models/pruning/recipes/synthetic.json.
#include <torch/torch.h>

#include "bench.h"
#include "moesaic/base/error.h"
#include "moesaic/data/pattern_tokens.h"
#include "moesaic/ops/pattern_sgd.h"
#include "one_thread.h"

namespace moesaic::bench {
namespace {

using at::Tensor;

constexpr int64_t kPatternExperts = 20, kPatterns = 200, kNeurons = 20, kPatternBatch = 128;
constexpr PatternSgdOptions kRates;

struct PatternProblem {
  PatternWeights weights;
  PatternBatch batch;
};

PatternProblem pattern_problem() {
  const PatternTokens examples = pattern_tokens({}, "train", 0, kPatternBatch);
  Tensor sign = at::ones({kPatternExperts});
  sign.narrow(0, kPatternExperts / 2, kPatternExperts / 2).fill_(-1.0);
  return {{at::randn({kPatternExperts, kPatterns}) * 1e-2,
           at::randn({kPatternExperts, kPatterns, kNeurons}) * 1e-2, sign},
          {examples.tokens_Nn.to(at::kInt), (1 - 2 * examples.label_N).to(at::kFloat)}};
}

/// f of examples, given the routing values of their tokens [B, n, K] and a function that gives the
/// experts' outputs [B, l, K] for the selected tokens.
template <class Outputs>
Tensor output_of(const Tensor& values_BnK, const Tensor& sign_K, const Outputs& outputs) {
  const auto [top_BlK, token_BlK] = values_BnK.topk(kRates.selected, 1);
  return ((top_BlK.softmax(1) * outputs(token_BlK)).sum(1) * sign_K).sum(1);
}

void descend(const Tensor& loss, const Tensor& router, const Tensor& neurons) {
  loss.backward();
  const torch::NoGradGuard no_grad;
  router.sub_(router.grad(), kRates.router_lr);
  neurons.sub_(neurons.grad(), kRates.expert_lr);
  router.mutable_grad().zero_();
  neurons.mutable_grad().zero_();
}

/// Tokens as vectors of d numbers; neurons [K, d, m].
void step_on_vectors(const Tensor& x_BnD, const PatternProblem& problem, Tensor& router,
                     Tensor& neurons) {
  const Tensor f =
      output_of(x_BnD.matmul(router.t()), problem.weights.sign_K, [&](const Tensor& token_BlK) {
        const Tensor place = token_BlK.permute({2, 0, 1}).flatten(1);  // [K, B l]
        const int64_t n = x_BnD.size(1);
        const Tensor example = at::arange(kPatternBatch).repeat_interleave(kRates.selected) * n;
        const Tensor rows = x_BnD.flatten(0, 1).index({(place + example).flatten()});
        const Tensor hidden = rows.view({kPatternExperts, -1, kPatterns}).bmm(neurons).relu();
        return hidden.sum(2).view({kPatternExperts, kPatternBatch, -1}).permute({1, 2, 0});
      });
  descend((1 - problem.batch.y_B * f).mean(), router, neurons);
}

/// Tokens as numbers of patterns, whose products are looked up.
void step_on_indices(const Tensor& token_Bn, const PatternProblem& problem, Tensor& router,
                     Tensor& neurons) {
  const Tensor values_BnK = router.t().index({token_Bn});
  const Tensor expert = at::arange(kPatternExperts);
  const Tensor f = output_of(values_BnK, problem.weights.sign_K, [&](const Tensor& place_BlK) {
    const Tensor pattern_BlK =
        token_Bn.unsqueeze(2).expand({-1, -1, kPatternExperts}).gather(1, place_BlK);
    return neurons.index({expert, pattern_BlK}).relu().sum(3);
  });
  descend((1 - problem.batch.y_B * f).mean(), router, neurons);
}

Row patterns_against(bool vectors, const Contest& contest) {
  PatternProblem ours = pattern_problem();
  Tensor router = ours.weights.router_Kd.clone().requires_grad_(true);
  Tensor neurons = ours.weights.neurons_Kdm.clone().requires_grad_(true);
  const Tensor token_Bn = ours.batch.tokens_Bn.to(at::kLong);
  const Tensor x_BnD = at::one_hot(token_Bn, kPatterns).to(at::kFloat);
  const auto peer = [&] {
    if (vectors) {
      step_on_vectors(x_BnD, ours, router, neurons);
    } else {
      step_on_indices(token_Bn, ours, router, neurons);
    }
  };
  const auto own = [&] { pattern_sgd_step(ours.weights, ours.batch, kRates); };
  own();
  peer();
  const double off = (ours.weights.neurons_Kdm - neurons.detach()).abs().max().item<double>() +
                     (ours.weights.router_Kd - router.detach()).abs().max().item<double>();
  if (!(off < 1e-6)) fail("bench pruning: a step of the peer differs by {:.3g}", off);
  const Times times = alternate(own, peer);
  return row_of(contest, times);
}

}  // namespace

void bench_pruning(const Report& report) {
  const OneThread one;
  report("cpu/synthetic_step", [&] {
    return patterns_against(true, {10.0, "autograd, tokens as vectors"});
  });
  report("cpu/synthetic_step_vs_indices", [&] {
    return patterns_against(false, {3.0, "autograd, products looked up by index"});
  });
}

}  // namespace moesaic::bench
