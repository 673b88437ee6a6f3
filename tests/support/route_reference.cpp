// SPDX-License-Identifier: Apache-2.0
#include "ops/route_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moesaic::testing {
namespace {

using Row = std::vector<double>;

std::vector<int64_t> best_experts(const Row& logits, int64_t k) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  order.resize(k);
  return order;
}

double gate_of(const Row& logits, const std::vector<int64_t>& chosen, int64_t expert,
               GateSoftmax softmax) {
  double sum = 0;
  if (softmax == GateSoftmax::all) {
    for (const double logit : logits) sum += std::exp(logit);
  } else {
    for (const int64_t e : chosen) sum += std::exp(logits[e]);
  }
  return std::exp(logits[expert]) / sum;
}

}  // namespace

RouteReference route_reference(const at::Tensor& logits_TE, const TokenChoiceOptions& options) {
  const at::Tensor logits = logits_TE.to(torch::kDouble).contiguous();
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  std::vector<Row> rows(tokens, Row(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t e = 0; e < experts; ++e) rows[t][e] = logits[t][e].item<double>();
  }
  RouteReference out{std::vector<Row>(tokens, Row(experts, 0.0)),
                     std::vector<std::vector<bool>>(tokens, std::vector<bool>(experts, false))};
  const int64_t size = options.group_size > 0 ? options.group_size : tokens;
  for (int64_t begin = 0; begin < tokens; begin += size) {
    const int64_t end = std::min(tokens, begin + size);
    double limit = 1e18;
    if (options.capacity_factor > 0) {
      limit = std::ceil(std::ceil(static_cast<double>((end - begin) * options.k) *
                                  options.capacity_factor / static_cast<double>(experts)) /
                        4.0) *
              4.0;
    }
    std::vector<double> queue(experts, 0.0);
    for (int64_t rank = 0; rank < options.k; ++rank) {
      for (int64_t t = begin; t < end; ++t) {
        const auto chosen = best_experts(rows[t], options.k);
        const int64_t e = chosen[rank];
        if (queue[e]++ >= limit) continue;
        const bool kept =
            options.kept.empty() ||
            std::find(options.kept.begin(), options.kept.end(), e) != options.kept.end();
        if (!kept) continue;
        out.weight[t][e] = gate_of(rows[t], chosen, e, options.softmax);
        out.routed[t][e] = true;
      }
    }
  }
  return out;
}

}  // namespace moesaic::testing
