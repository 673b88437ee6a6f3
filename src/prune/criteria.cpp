// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/criteria.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/random.h"

namespace moesaic {
namespace {

using Scores = std::vector<double>;

struct ScoreInput {
  const MoEBlock& finetuned;
  const MoEBlock* pretrained;
  uint64_t seed;
};

Scores to_scores(const at::Tensor& values) {
  const at::Tensor flat = values.to(at::kCPU, at::kDouble).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

Scores router_norms(const MoEBlock& block) {
  return to_scores(block.layer->router->weight.to(at::kDouble).norm(2, {1}));
}

Scores router_magnitude(const ScoreInput& in) {
  return router_norms(in.finetuned);
}

Scores router_norm_change(const ScoreInput& in) {
  const auto& after = in.finetuned.layer->router->weight;
  const auto& before = in.pretrained->layer->router->weight;
  if (after.sizes() != before.sizes()) {
    fail_usage("block {}: the router is {} after fine-tuning and {} before; give its own network",
               in.finetuned.block, c10::str(after.sizes()), c10::str(before.sizes()));
  }
  Scores scores = router_norms(in.finetuned);
  const Scores old = router_norms(*in.pretrained);
  std::transform(scores.begin(), scores.end(), old.begin(), scores.begin(), std::minus<>());
  return scores;
}

Scores neuron_magnitude(const ScoreInput& in) {
  const nn::MoELayer& layer = in.finetuned.layer;
  const Scores present = to_scores(layer->experts->neuron_magnitudes());
  const std::vector<int64_t> kept = layer->kept();
  Scores scores(layer->options().experts, 0.0);
  for (size_t slot = 0; slot < kept.size(); ++slot) scores[kept[slot]] = present[slot];
  return scores;
}

Scores random_scores(const ScoreInput& in) {
  const uint64_t stream = mix64(stream_id("prune.random") + in.finetuned.block);
  Scores scores(in.finetuned.layer->options().experts);
  for (size_t expert = 0; expert < scores.size(); ++expert) {
    scores[expert] = CounterRng(in.seed, stream, expert).uniform();
  }
  return scores;
}

struct Criterion {
  std::string name;
  bool needs_pretrained;
  Scores (*score)(const ScoreInput&);
};

const std::vector<Criterion>& criteria() {
  static const std::vector<Criterion> list = {
      {"router-norm-change", true, router_norm_change},
      {"router-magnitude", false, router_magnitude},
      {"neuron-magnitude", false, neuron_magnitude},
      {"magnitude", false, neuron_magnitude},
      {"random", false, random_scores},
  };
  return list;
}

const Criterion& find_criterion(const std::string& name) {
  for (const Criterion& criterion : criteria()) {
    if (criterion.name == name) return criterion;
  }
  fail_usage("unknown pruning criterion '{}'; {}", name, did_you_mean(name, criterion_names()));
}

}  // namespace

std::vector<std::string> criterion_names() {
  std::vector<std::string> names;
  for (const Criterion& criterion : criteria()) names.push_back(criterion.name);
  return names;
}

bool criterion_needs_pretrained(const std::string& criterion) {
  return find_criterion(criterion).needs_pretrained;
}

std::vector<double> expert_scores(const std::string& criterion, const MoEBlock& finetuned,
                                  const MoEBlock* pretrained, uint64_t seed) {
  const Criterion& found = find_criterion(criterion);
  if (found.needs_pretrained && pretrained == nullptr) {
    fail_usage("block {}: criterion '{}' needs the pre-trained network", finetuned.block,
               criterion);
  }
  const torch::NoGradGuard no_grad;
  Scores scores = found.score({finetuned, pretrained, seed});
  for (size_t expert = 0; expert < scores.size(); ++expert) {
    if (!std::isfinite(scores[expert])) {
      fail("block {}: the weights of expert {} or its router are not finite", finetuned.block,
           expert);
    }
  }
  return scores;
}

}  // namespace moesaic
