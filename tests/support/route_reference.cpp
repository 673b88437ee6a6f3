// SPDX-License-Identifier: Apache-2.0
#include "ops/route_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moesaic::testing {
namespace {

using Row = std::vector<double>;

std::vector<Row> rows_of(const at::Tensor& logits_TE) {
  const at::Tensor logits = logits_TE.to(torch::kDouble).contiguous();
  const double* data = logits.const_data_ptr<double>();
  std::vector<Row> rows(logits.size(0));
  for (auto& row : rows) {
    row.assign(data, data + logits.size(1));
    data += logits.size(1);
  }
  return rows;
}

std::vector<int64_t> count_up(int64_t n) {
  std::vector<int64_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::vector<int64_t> seen_by(const std::vector<int64_t>& kept, int64_t experts, bool only_kept) {
  return only_kept && !kept.empty() ? kept : count_up(experts);
}

bool is_kept(const std::vector<int64_t>& kept, int64_t expert) {
  return kept.empty() || std::find(kept.begin(), kept.end(), expert) != kept.end();
}

/// The `count` first of `from` by falling value, equal ones in their order.
template <class Value>
std::vector<int64_t> best_of(std::vector<int64_t> from, int64_t count, const Value& value) {
  std::stable_sort(from.begin(), from.end(),
                   [&](int64_t a, int64_t b) { return value(a) > value(b); });
  from.resize(count);
  return from;
}

template <class Value>
double softmax(const std::vector<int64_t>& over, int64_t of, const Value& value) {
  double sum = 0;
  for (const int64_t i : over) sum += std::exp(value(i));
  return std::exp(value(of)) / sum;
}

double gate_of(const Row& logits, const std::vector<int64_t>& seen,
               const std::vector<int64_t>& chosen, int64_t expert, Gate gate) {
  const auto value = [&](int64_t e) { return logits[e]; };
  if (gate == Gate::softmax_all) return softmax(seen, expert, value);
  if (gate == Gate::softmax_selected) return softmax(chosen, expert, value);
  return gate == Gate::logit ? logits[expert] : 1.0;
}

double capacity_of(int64_t tokens, int64_t k, const RouteOptions& options, size_t experts) {
  const double fair =
      static_cast<double>(tokens * k) * options.capacity.factor / static_cast<double>(experts);
  const bool up = options.capacity.rounding == CapacityRounding::ceil;
  const auto multiple = static_cast<double>(options.capacity.multiple_of);
  return std::ceil((up ? std::ceil(fair) : std::nearbyint(fair)) / multiple) * multiple;
}

RouteReference nothing_routed(int64_t tokens, int64_t experts) {
  return {std::vector<Row>(tokens, Row(experts, 0.0)),
          std::vector<std::vector<bool>>(tokens, std::vector<bool>(experts, false))};
}

/// [begin, end) of every group.
std::vector<std::pair<int64_t, int64_t>> groups_of(int64_t tokens, int64_t group_size) {
  const int64_t size = group_size > 0 ? group_size : tokens;
  std::vector<std::pair<int64_t, int64_t>> groups;
  for (int64_t begin = 0; begin < tokens; begin += size) {
    groups.emplace_back(begin, std::min(tokens, begin + size));
  }
  return groups;
}

}  // namespace

RouteReference token_choice_reference(const at::Tensor& logits_TE, const RouteOptions& options) {
  const std::vector<Row> rows = rows_of(logits_TE);
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const auto seen = seen_by(options.kept, experts, options.pruned == PrunedSelection::reroute);
  RouteReference out = nothing_routed(tokens, experts);
  std::vector<std::vector<int64_t>> chosen(tokens);
  std::vector<double> first_gate(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    chosen[t] = best_of(seen, options.k, [&](int64_t e) { return rows[t][e]; });
    first_gate[t] = gate_of(rows[t], seen, chosen[t], chosen[t][0], options.gate);
  }
  for (const auto& [begin, end] : groups_of(tokens, options.group_size)) {
    double limit = options.capacity.rows > 0 ? static_cast<double>(options.capacity.rows) : 1e18;
    if (options.capacity.factor > 0) {
      limit = capacity_of(end - begin, options.k, options, seen.size());
    }
    std::vector<int64_t> order(end - begin);
    std::iota(order.begin(), order.end(), begin);
    if (options.capacity.batch_priority) {
      order = best_of(order, end - begin, [&](int64_t t) { return first_gate[t]; });
    }
    std::vector<double> queue(experts, 0.0);
    for (int64_t rank = 0; rank < options.k; ++rank) {
      for (const int64_t t : order) {
        const int64_t e = chosen[t][rank];
        if (queue[e]++ >= limit || !is_kept(options.kept, e)) continue;
        out.weight[t][e] = gate_of(rows[t], seen, chosen[t], e, options.gate);
        out.routed[t][e] = true;
      }
    }
  }
  return out;
}

RouteReference expert_choice_reference(const at::Tensor& logits_TE, const RouteOptions& options) {
  const std::vector<Row> rows = rows_of(logits_TE);
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const auto computed = seen_by(options.kept, experts, true);
  const auto seen = seen_by(options.kept, experts, options.pruned == PrunedSelection::reroute);
  RouteReference out = nothing_routed(tokens, experts);
  for (const auto& [begin, end] : groups_of(tokens, options.group_size)) {
    std::vector<int64_t> group(end - begin);
    std::iota(group.begin(), group.end(), begin);
    int64_t take = options.l;
    if (take == 0) {
      take = std::min<int64_t>(
          end - begin, static_cast<int64_t>(capacity_of(end - begin, 1, options, seen.size())));
    }
    for (const int64_t e : computed) {
      const auto logit = [&](int64_t t) { return rows[t][e]; };
      const auto over_experts = [&](int64_t t) {
        return softmax(seen, e, [&](int64_t other) { return rows[t][other]; });
      };
      const bool by_gate = options.gate == Gate::softmax_all;
      const auto chosen =
          by_gate ? best_of(group, take, over_experts) : best_of(group, take, logit);
      for (const int64_t t : chosen) {
        out.routed[t][e] = true;
        out.weight[t][e] = 1.0;
        if (by_gate) out.weight[t][e] = over_experts(t);
        if (options.gate == Gate::softmax_selected) out.weight[t][e] = softmax(chosen, t, logit);
        if (options.gate == Gate::softmax_tokens) out.weight[t][e] = softmax(group, t, logit);
      }
    }
  }
  return out;
}

RouteReference adaptive_reference(const at::Tensor& logits_TE, double threshold,
                                  const std::vector<int64_t>& kept) {
  const std::vector<Row> rows = rows_of(logits_TE);
  RouteReference out = nothing_routed(logits_TE.size(0), logits_TE.size(1));
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t e = 0; e < rows[t].size(); ++e) {
      if (!(rows[t][e] >= threshold) || !is_kept(kept, static_cast<int64_t>(e))) continue;
      out.routed[t][e] = true;
      out.weight[t][e] = 1.0;
    }
  }
  return out;
}

void expect_routing(const Routing& routing, const RouteReference& reference,
                    const std::vector<int64_t>& kept_or_empty) {
  const auto tokens = static_cast<int64_t>(reference.routed.size());
  const auto kept = kept_or_empty.empty() && tokens > 0
                        ? count_up(static_cast<int64_t>(reference.routed[0].size()))
                        : kept_or_empty;
  ASSERT_EQ(routing.num_tokens(), tokens);
  ASSERT_EQ(routing.token_row.size(0), routing.max_rows());
  ASSERT_EQ(routing.gate.size(0), routing.max_rows());
  if (tokens > 0) {
    ASSERT_EQ(routing.num_experts(), static_cast<int64_t>(kept.size()));
  }
  const auto* offsets = routing.offsets.const_data_ptr<int32_t>();
  const auto* token = routing.token.const_data_ptr<int32_t>();
  const auto* begins = routing.token_offsets.const_data_ptr<int32_t>();
  const auto* token_row = routing.token_row.const_data_ptr<int32_t>();
  const at::Tensor gates = routing.gate.detach().to(torch::kDouble);
  const auto* gate = gates.const_data_ptr<double>();
  int64_t row = 0;
  std::vector<std::vector<int64_t>> rows_of_token(tokens);
  for (size_t slot = 0; slot < kept.size() && tokens > 0; ++slot) {
    ASSERT_EQ(offsets[slot], row);
    for (int64_t t = 0; t < tokens; ++t) {
      if (!reference.routed[t][kept[slot]]) continue;
      ASSERT_LT(row, routing.max_rows());
      ASSERT_EQ(token[row], t) << "row " << row;
      const double wanted = reference.weight[t][kept[slot]];
      EXPECT_NEAR(gate[row], wanted, 1e-6 * std::max(1.0, std::abs(wanted)));
      rows_of_token[t].push_back(row++);
    }
  }
  ASSERT_EQ(offsets[routing.num_experts()], row);
  EXPECT_EQ(begins[0], 0);
  EXPECT_EQ(begins[tokens], row);
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int64_t> found(token_row + begins[t], token_row + begins[t + 1]);
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, rows_of_token[t]) << "token " << t;
  }
  for (int64_t i = row; i < routing.max_rows(); ++i) {
    EXPECT_EQ(gate[i], 0.0);
    EXPECT_EQ(token[i], 0);
    EXPECT_EQ(token_row[i], 0);
  }
}

void expect_same_routing(const Routing& a, const Routing& b) {
  EXPECT_TRUE(torch::equal(a.offsets, b.offsets));
  EXPECT_TRUE(torch::equal(a.token, b.token));
  EXPECT_TRUE(torch::equal(a.gate, b.gate));
  EXPECT_TRUE(torch::equal(a.token_offsets, b.token_offsets));
  EXPECT_TRUE(torch::equal(a.token_row, b.token_row));
  EXPECT_TRUE(torch::equal(a.choice, b.choice));
}

void expect_same_shapes(const Routing& routing, const Routing& meta) {
  const auto pairs = {std::pair{&routing.offsets, &meta.offsets},
                      std::pair{&routing.token, &meta.token},
                      std::pair{&routing.gate, &meta.gate},
                      std::pair{&routing.token_offsets, &meta.token_offsets},
                      std::pair{&routing.token_row, &meta.token_row},
                      std::pair{&routing.choice, &meta.choice}};
  for (const auto& [real, shape] : pairs) {
    EXPECT_EQ(real->sizes(), shape->sizes());
    EXPECT_EQ(real->scalar_type(), shape->scalar_type());
    EXPECT_TRUE(shape->is_meta());
  }
}

}  // namespace moesaic::testing
