// SPDX-License-Identifier: Apache-2.0
#include "filter_order.h"

#include <algorithm>

namespace moesaic::ops {
namespace {

constexpr int64_t kPieceRows = 1024;  // Rows that share sums of gradients.
constexpr int64_t kAheadTokens = 4;   // Distance, in tokens, of prefetched inputs.
constexpr int64_t kCachedWeights = int64_t{128} << 10;

/// Returns the rows in the order of their experts, in pieces of one expert each.
std::vector<FilterPiece> expert_pieces(const at::Tensor& offsets) {
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  std::vector<FilterPiece> pieces;
  for (int64_t e = 0; e + 1 < offsets.size(0); ++e) {
    for (int64_t r = begins[e]; r < begins[e + 1]; r += kPieceRows) {
      pieces.push_back({r, std::min<int64_t>(r + kPieceRows, begins[e + 1]), e, 1});
    }
  }
  return pieces;
}

FilterOrder by_expert(const at::Tensor& offsets, const int32_t* token) {
  constexpr int32_t kAhead = 8;  // Distance of prefetches in rows.
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  const int64_t experts = offsets.size(0) - 1;
  const int32_t last = begins[experts] - 1;
  FilterOrder order;
  order.pieces = expert_pieces(offsets);
  for (int64_t e = 0; e < experts; ++e) {
    for (int32_t r = begins[e]; r < begins[e + 1]; ++r) {
      order.row.push_back(r);
      order.expert.push_back(static_cast<int32_t>(e));
      order.next.push_back(token[std::min(r + kAhead, last)]);
    }
  }
  return order;
}

/// Sorts the rows by token (counting sort); the rows of a token stay in the order of experts.
FilterOrder by_token(const int32_t* begins, int64_t experts, const int32_t* token, int64_t tokens) {
  const int64_t rows = begins[experts];
  std::vector<int32_t> place(static_cast<size_t>(tokens) + 1, 0);
  for (int64_t r = 0; r < rows; ++r) ++place[token[r] + 1];
  for (int64_t i = 0; i < tokens; ++i) place[i + 1] += place[i];
  FilterOrder order;
  order.row.resize(rows);
  order.expert.resize(rows);
  for (int64_t e = 0; e < experts; ++e) {
    for (int32_t r = begins[e]; r < begins[e + 1]; ++r) {
      const int32_t at = place[token[r]]++;
      order.row[at] = r;
      order.expert[at] = static_cast<int32_t>(e);
    }
  }
  order.next.resize(rows);
  for (int64_t i = 0; i < rows; ++i) {
    order.next[i] = static_cast<int32_t>(std::min(token[order.row[i]] + kAheadTokens, tokens - 1));
  }
  for (int64_t r = 0; r < rows; r += kPieceRows) {
    order.pieces.push_back({r, std::min(r + kPieceRows, rows), 0, experts});
  }
  return order;
}

}  // namespace

FilterOrder filter_order(const at::Tensor& offsets, const at::Tensor& token, int64_t tokens,
                         int64_t weight_bytes) {
  const auto* begins = offsets.const_data_ptr<int32_t>();
  const int64_t experts = offsets.size(0) - 1;
  if (experts <= 1 || weight_bytes > kCachedWeights) {
    return by_expert(offsets, token.const_data_ptr<int32_t>());
  }
  return by_token(begins, experts, token.const_data_ptr<int32_t>(), tokens);
}

}  // namespace moesaic::ops
