// SPDX-License-Identifier: Apache-2.0
#include "moesaic/prune/criteria.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "moesaic/base/error.h"
#include "moesaic/base/random.h"
#include "moesaic/base/suggestions.h"

namespace moesaic {
namespace {

constexpr Powers kStatisticPowers[] = {{0, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}};

at::Tensor zeros(at::IntArrayRef shape) {
  return at::zeros(shape, at::kDouble);
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.to(at::kCPU, at::kDouble);
}

/// Adds what tokens select, and the gates of those that an expert has the largest of. `into` is
/// the layer's merged_into.
void add_choices(const RoutingRecord& record, const at::Tensor& ids_K,
                 const std::vector<int64_t>& into, LayerStatistics& statistics) {
  const Routing& routing = record.routing;
  const at::Tensor weights_TK = on_host(combine_weights(routing));
  if (routing.choice.size(1) == 0) {
    const auto [gate_T, slot_T] = weights_TK.max(1);
    statistics.first_gates.index_add_(0, ids_K.index_select(0, slot_T), gate_T.clamp_min(0));
    statistics.selections.index_add_(0, ids_K, on_host(routing.offsets.diff()));
    return;
  }
  at::Tensor choice_Tk = routing.choice.to(at::kCPU, at::kLong);
  if (!into.empty()) choice_Tk = at::tensor(into, at::kLong).index({choice_Tk});
  const at::Tensor none_TE = zeros({weights_TK.size(0), statistics.selections.size(0)});
  statistics.selections.add_(none_TE.scatter(1, choice_Tk, 1.0).sum(0));
  // A first choice that finds no room, or was pruned, is received by no one.
  const at::Tensor weights_TE = none_TE.index_copy(1, ids_K, weights_TK);
  const at::Tensor first_T1 = choice_Tk.narrow(1, 0, 1);
  statistics.first_gates.index_add_(0, first_T1.squeeze(1),
                                    weights_TE.gather(1, first_T1).squeeze(1));
}

/// Adds gated outputs and, where two are of one token, their inner products. `gate_R1` is 1 where
/// gates are within the outputs.
void add_gated(const Routing& routing, const at::Tensor& outputs_Ro, const at::Tensor& gate_R1,
               const at::Tensor& id_R, LayerStatistics& statistics) {
  constexpr int64_t kChunk = 8192;  // Rows that are copied at a time.
  const int64_t rows = outputs_Ro.size(0), experts = statistics.selections.size(0);
  // A token's rows are beside each other in this order.
  const at::Tensor order_R = routing.token_row.narrow(0, 0, rows).to(at::kCPU, at::kLong);
  const at::Tensor token_R = routing.token.to(at::kCPU).index_select(0, order_R);
  const at::Tensor ordered_id_R = id_R.index_select(0, order_R);
  const auto gated = [&](int64_t first, int64_t count) {
    const at::Tensor row = order_R.narrow(0, first, count);
    return outputs_Ro.index_select(0, row) * gate_R1.index_select(0, row);
  };
  at::Tensor products = statistics.products_EE.view({-1});
  bool is_shared = true;  // Whether a token has rows at this distance.
  for (int64_t distance = 0; is_shared && distance < rows; ++distance) {
    is_shared = false;
    for (int64_t first = 0; first < rows - distance; first += kChunk) {
      const int64_t count = std::min(kChunk, rows - distance - first), other = first + distance;
      const at::Tensor same =
          token_R.narrow(0, first, count).eq(token_R.narrow(0, other, count)).to(at::kDouble);
      if (!same.any().item<bool>()) continue;
      is_shared = true;
      const at::Tensor one_Ro = gated(first, count);
      const at::Tensor of_pairs = (one_Ro * gated(other, count)).sum(1) * same;
      const at::Tensor id = ordered_id_R.narrow(0, first, count);
      const at::Tensor other_id = ordered_id_R.narrow(0, other, count);
      products.index_add_(0, id * experts + other_id, of_pairs);
      if (distance > 0) products.index_add_(0, other_id * experts + id, of_pairs);
      if (distance == 0) statistics.gated_Eo.index_add_(0, id, one_Ro);
    }
  }
}

/// Adds the experts' outputs. Where gates are within them, a gate times the norm is the norm alone.
void add_rows(const RoutingRecord& record, const nn::ExpertRows& computed, const at::Tensor& ids_K,
              LayerStatistics& statistics) {
  const Routing& routing = record.routing;
  const auto rows = routing.offsets[-1].item<int64_t>();
  const at::Tensor id_R =
      ids_K.index_select(0, row_experts(routing).narrow(0, 0, rows).to(at::kCPU));
  const at::Tensor outputs_Ro = on_host(computed.outputs.narrow(0, 0, rows));
  const at::Tensor gate_R = on_host(routing.gate.narrow(0, 0, rows));
  const at::Tensor norm_R = outputs_Ro.norm(2, {1});
  for (auto& [powers, sum] : statistics.sums) {
    const double gate = computed.is_gated && powers.norm > 0 ? 0 : powers.gate;
    sum.index_add_(0, id_R, gate_R.pow(gate) * norm_R.pow(powers.norm));
  }
  if (!statistics.outputs_Eo.defined()) {
    statistics.outputs_Eo = zeros({statistics.selections.size(0), outputs_Ro.size(1)});
    statistics.gated_Eo = at::zeros_like(statistics.outputs_Eo);
  }
  statistics.outputs_Eo.index_add_(0, id_R, outputs_Ro);
  const at::Tensor gate_R1 = (computed.is_gated ? at::ones_like(gate_R) : gate_R).unsqueeze(1);
  add_gated(routing, outputs_Ro, gate_R1, id_R, statistics);
}

using Scores = std::vector<double>;

/// Returns the scores [E] float64 of a tensor in memory.
Scores scores_of(const at::Tensor& score_E) {
  const at::Tensor whole_E = score_E.contiguous();
  const auto* data = whole_E.const_data_ptr<double>();
  return {data, data + whole_E.numel()};
}

Scores router_norms(const MoEBlock& block, const nn::ParameterReader& values) {
  const at::Tensor weight = values(block.layer->router->weight);
  return scores_of(weight.norm(2, {1}, /*keepdim=*/false, at::kDouble).to(at::kCPU));
}

Scores router_magnitude(const ScoreInput& in) {
  return router_norms(in.finetuned, in.finetuned_values);
}

Scores router_norm_change(const ScoreInput& in) {
  const auto& after = in.finetuned.layer->router->weight;
  const auto& before = in.pretrained->layer->router->weight;
  if (after.sizes() != before.sizes()) {
    fail_usage(
        "block {0}: the router is {1} after fine-tuning and {2} before; choose a pretrained "
        "network with a router of {1}",
        in.finetuned.block, c10::str(after.sizes()), c10::str(before.sizes()));
  }
  Scores scores = router_norms(in.finetuned, in.finetuned_values);
  const Scores old = router_norms(*in.pretrained, in.pretrained_values);
  std::transform(scores.begin(), scores.end(), old.begin(), scores.begin(), std::minus<>());
  return scores;
}

/// Returns a number of each present expert by its weights, `absent` for the others.
Scores of_weights(const MoEBlock& block, const nn::ParameterReader& values, double absent,
                  auto number) {
  const std::vector<int64_t> kept = block.layer->kept();
  Scores scores(static_cast<size_t>(block.layer->options().num_experts), absent);
  for (size_t slot = 0; slot < kept.size(); ++slot) {
    scores[static_cast<size_t>(kept[slot])] =
        number(block.layer->experts->matrices(static_cast<int64_t>(slot), values));
  }
  return scores;
}

Scores neuron_magnitude(const ScoreInput& in) {
  return of_weights(in.finetuned, in.finetuned_values, 0.0, nn::neuron_magnitude);
}

Scores neuron_magnitude_change(const ScoreInput& in) {
  Scores scores = neuron_magnitude(in);
  const Scores old = of_weights(*in.pretrained, in.pretrained_values,
                                std::numeric_limits<double>::quiet_NaN(), nn::neuron_magnitude);
  if (old.size() != scores.size()) {
    fail_usage(
        "block {0}: the layer has {1} experts after fine-tuning and {2} before; choose a "
        "pretrained network with {1} experts in the layer",
        in.finetuned.block, scores.size(), old.size());
  }
  for (const int64_t id : in.finetuned.layer->kept()) {
    const auto at = static_cast<size_t>(id);
    if (std::isnan(old[at])) {
      fail_usage(
          "block {}: expert {} was removed from the pretrained network; choose an unpruned "
          "pretrained network",
          in.finetuned.block, id);
    }
    scores[at] -= old[at];
  }
  return scores;
}

double peakedness(const nn::ExpertMatrices& expert) {
  double absolute = 0.0, squares = 0.0, count = 0.0;
  for (const auto* matrices : {&expert.hidden, &expert.others}) {
    for (const at::Tensor& matrix : *matrices) {
      absolute += matrix.norm(1, at::kDouble).item<double>();
      const auto norm = matrix.norm(2, at::kDouble).item<double>();
      squares += norm * norm;
      count += static_cast<double>(matrix.numel());
    }
  }
  return squares > 0.0 ? -(absolute / count) / std::sqrt(squares / count) : -1.0;
}

Scores aimer(const ScoreInput& in) {
  return of_weights(in.finetuned, in.finetuned_values, -1.0, peakedness);
}

double tokens_of(const LayerStatistics& statistics) {
  return static_cast<double>(std::max<int64_t>(1, statistics.tokens));
}

template <at::Tensor LayerStatistics::*sums>
Scores sum_over_tokens(const ScoreInput& in) {
  return scores_of((in.statistics->*sums) / tokens_of(*in.statistics));
}

template <int gate, int norm>
Scores sum_over_rows(const ScoreInput& in) {
  return scores_of(in.statistics->sums.at({gate, norm}) / tokens_of(*in.statistics));
}

template <int gate, int norm>
Scores mean_over_rows(const ScoreInput& in) {
  const auto& sums = in.statistics->sums;
  return scores_of(sums.at({gate, norm}) / sums.at({0, 0}).clamp_min(1.0));
}

Scores output_error(const ScoreInput& in) {
  return scores_of(in.statistics->products_EE.diagonal() / tokens_of(*in.statistics));
}

Scores output_variance(const ScoreInput& in) {
  Scores scores = output_error(in);
  if (!in.statistics->gated_Eo.defined()) return scores;
  for (size_t e = 0; e < scores.size(); ++e) {
    const double norm = in.statistics->gated_Eo[static_cast<int64_t>(e)].norm().item<double>();
    const double mean = norm / tokens_of(*in.statistics);
    scores[e] = std::max(0.0, scores[e] - mean * mean);
  }
  return scores;
}

Scores random_scores(const ScoreInput& in) {
  const uint64_t stream = mix64(stream_id("prune.random") + in.finetuned.block);
  Scores scores(in.finetuned.layer->options().num_experts);
  for (size_t expert = 0; expert < scores.size(); ++expert) {
    scores[expert] = CounterRng(in.seed, stream, expert).uniform();
  }
  return scores;
}

}  // namespace

LayerStatistics empty_statistics(int64_t experts) {
  LayerStatistics statistics;
  for (const Powers powers : kStatisticPowers) statistics.sums[powers] = zeros({experts});
  statistics.selections = zeros({experts});
  statistics.first_gates = zeros({experts});
  statistics.products_EE = zeros({experts, experts});
  return statistics;
}

ExpertStatisticsMeter::ExpertStatisticsMeter(const Model& model) : blocks_(model.moe_blocks()) {
  for (MoEBlock& block : blocks_) {
    LayerStatistics& statistics = statistics_[block.block] =
        empty_statistics(block.layer->options().num_experts);
    block.layer->set_observer(
        [&statistics, experts = block.layer->experts, into = block.layer->merged_into](
            const RoutingRecord& record, const at::Tensor& inputs) {
          const torch::NoGradGuard no_grad;
          const at::Tensor ids_K = at::tensor(record.kept, at::kLong);
          statistics.tokens += record.routing.num_tokens();
          add_choices(record, ids_K, into, statistics);
          add_rows(record, expert_rows(*experts, inputs, record.routing, {}), ids_K, statistics);
        });
  }
}

ExpertStatisticsMeter::~ExpertStatisticsMeter() {
  for (MoEBlock& block : blocks_) block.layer->set_observer({});
}

const std::vector<Criterion>& criteria() {
  constexpr bool kCompares = true, kImages = true;
  static const std::vector<Criterion> list = {
      {"router-norm-change", kCompares, false, router_norm_change,
       "growth of the norm of the router's weights since the pretrained network"},
      {"router-magnitude", false, false, router_magnitude, "norm of the router's weights"},
      {"neuron-magnitude", false, false, neuron_magnitude,
       "mean norm of the weights of an expert's neurons"},
      {"magnitude", false, false, neuron_magnitude, "another name for neuron-magnitude"},
      {"neuron-magnitude-change", kCompares, false, neuron_magnitude_change,
       "growth of the mean norm of an expert's neurons since the pretrained network"},
      {"importance", false, kImages, sum_over_tokens<&LayerStatistics::first_gates>,
       "fraction of tokens whose largest gate is the expert's, times the mean gate of these "
       "tokens"},
      {"load", false, kImages, sum_over_tokens<&LayerStatistics::selections>,
       "fraction of tokens that select the expert, within its capacity or not"},
      {"frequency", false, kImages, sum_over_rows<0, 0>,
       "fraction of tokens that the expert computes"},
      {"gate", false, kImages, mean_over_rows<1, 0>, "mean gate of the expert's tokens"},
      {"gate-sum", false, kImages, sum_over_rows<1, 0>, "sum of the gates of the expert's tokens"},
      {"reap", false, kImages, mean_over_rows<1, 1>,
       "mean of gate times norm of output over the expert's tokens, as in arXiv:2510.13999"},
      {"reap-sum", false, kImages, sum_over_rows<1, 1>,
       "sum of gate times norm of output over the expert's tokens"},
      {"man", false, kImages, mean_over_rows<0, 1>,
       "mean norm of output over the expert's tokens, as in arXiv:2606.15716"},
      {"man-sum", false, kImages, sum_over_rows<0, 1>,
       "sum of norm of output over the expert's tokens"},
      {"msan", false, kImages, mean_over_rows<0, 2>,
       "mean squared norm of output over the expert's tokens, as in arXiv:2606.15716"},
      {"msan-sum", false, kImages, sum_over_rows<0, 2>,
       "sum of squared norm of output over the expert's tokens"},
      {"output-variance", false, kImages, output_variance,
       "variance over tokens of gate times output"},
      {"output-error", false, kImages, output_error,
       "squared error of the layer's output without the expert; the set of experts with the "
       "smallest joint error is removed; if there are over a million sets, experts are removed one "
       "by one",
       true},
      {"aimer", false, false, aimer,
       "mean absolute weight divided by root mean square weight, negated, as in arXiv:2603.18492"},
      {"random", false, false, random_scores, "random score, as a baseline"},
  };
  return list;
}

std::vector<std::string> criterion_names() {
  std::vector<std::string> names;
  for (const Criterion& criterion : criteria()) names.push_back(criterion.name);
  return names;
}

const Criterion& criterion_of(const std::string& name) {
  const auto found = std::ranges::find(criteria(), name, &Criterion::name);
  if (found != criteria().end()) return *found;
  fail_usage("unknown pruning criterion '{}'; {}", name, did_you_mean(name, criterion_names()));
}

std::vector<double> expert_scores(const std::string& criterion, const ScoreInput& input) {
  const Criterion& found = criterion_of(criterion);
  const int64_t block = input.finetuned.block;
  if (found.needs_pretrained && input.pretrained == nullptr) {
    fail_usage(
        "block {}: criterion '{}' needs the pretrained network; give it, or choose "
        "router-magnitude",
        block, criterion);
  }
  if (found.needs_images && input.statistics == nullptr) {
    fail_usage(
        "block {}: criterion '{}' needs calibration images; give some, or choose router-magnitude",
        block, criterion);
  }
  if (found.selects_subset && !all_finite(input.statistics->products_EE)) {
    fail("block {}: criterion '{}': products of the experts' outputs are not finite", block,
         criterion);
  }
  const torch::NoGradGuard no_grad;
  Scores scores = found.score(input);
  for (size_t expert = 0; expert < scores.size(); ++expert) {
    if (!std::isfinite(scores[expert])) {
      fail("block {}: the weights of expert {} or its router are not finite", block, expert);
    }
  }
  return scores;
}

}  // namespace moesaic
