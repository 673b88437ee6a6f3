// SPDX-License-Identifier: Apache-2.0
// Tokens are processed in tiles whose rows fit a fixed buffer. The rows of an expert are in token
// order, so each tile has one contiguous range of rows of every expert.
#include "moesaic/ops/routed_mlp.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "../mlp_operators.h"
#include "mlp_layer.h"
#include "moesaic/base/error.h"
#include "rows.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

constexpr int64_t kBufferBytes = 14 << 20;  // Of all rows of a tile, between the layers too.

/// Part of a routing for tokens [begin, end), with rows numbered from 0.
struct TokenTile {
  int64_t begin, end;
  std::vector<int32_t> offsets;  // [K + 1]
  std::vector<int32_t> token;    // Token of each row.
};

class TokenTiles {
 public:
  TokenTiles(const Tensor& offsets, const Tensor& token, const Tensor& token_offsets)
      : token_(token.const_data_ptr<int32_t>()),
        token_offsets_(token_offsets.const_data_ptr<int32_t>()),
        tokens_(token_offsets.size(0) - 1),
        ends_(offsets.const_data_ptr<int32_t>() + 1,
              offsets.const_data_ptr<int32_t>() + offsets.size(0)),
        cursor_(offsets.const_data_ptr<int32_t>(),
                offsets.const_data_ptr<int32_t>() + offsets.size(0) - 1),
        place_(token.size(0)) {}

  /// Finds the next tokens, at least one, with at most `limit` rows; returns false at the end.
  /// Throws where the two halves of the routing differ in the number of those rows.
  bool next(int64_t limit, TokenTile& tile) {
    tile = {tile.end, tile.end, {0}, {}};
    if (tile.begin == tokens_) return false;
    const int32_t first = token_offsets_[tile.begin];
    while (tile.end < tokens_ &&
           (tile.end == tile.begin || token_offsets_[tile.end + 1] - first <= limit)) {
      ++tile.end;
    }
    for (size_t e = 0; e < ends_.size(); ++e) {
      for (; cursor_[e] < ends_[e] && token_[cursor_[e]] < tile.end; ++cursor_[e]) {
        place_[cursor_[e]] = static_cast<int32_t>(tile.token.size());
        tile.token.push_back(token_[cursor_[e]]);
      }
      tile.offsets.push_back(static_cast<int32_t>(tile.token.size()));
    }
    const int64_t pulled = token_offsets_[tile.end] - first;
    const auto found = static_cast<int64_t>(tile.token.size());
    if (found != pulled || found > limit) {
      fail("routed_mlp: tokens {} to {} have {} rows, but the experts hold {} of them; {} fit",
           tile.begin, tile.end - 1, pulled, found, limit);
    }
    return true;
  }

  /// Returns the position of a row of the routing within its tile.
  int32_t place(int32_t row) const { return place_[row]; }

 private:
  const int32_t *token_, *token_offsets_;
  int64_t tokens_;
  std::vector<int32_t> ends_, cursor_, place_;
};

template <class Scalar>
void fetch(const Scalar* row, int64_t width) {
  const auto* bytes = reinterpret_cast<const char*>(row);
  const int64_t size = width * static_cast<int64_t>(sizeof(Scalar));
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(bytes + at);
}

template <class Scalar>
void add_up(const TokenTile& tile, const TokenTiles& tiles, const RoutedMlpArguments& in,
            const Scalar* rows, int64_t width, Scalar* y) {
  const auto* begins = in.token_offsets.const_data_ptr<int32_t>();
  const auto* row_of = in.token_row.const_data_ptr<int32_t>();
  const auto* weight = in.gate.const_data_ptr<SumOf<Scalar>>();
  const auto row_at = [&](int32_t i) { return rows + tiles.place(row_of[i]) * width; };
  at::parallel_for(tile.begin, tile.end, kRowsPerTask, [&](int64_t first, int64_t last) {
    constexpr int64_t kAhead = 6;  // Prefetch distance in tokens; the hardware cannot predict rows.
    for (int64_t t = first; t < last; ++t) {
      const int64_t soon = std::min(t + kAhead, last - 1);
      for (int32_t i = begins[soon]; i < begins[soon + 1]; ++i) fetch(row_at(i), width);
      weighted_sum(
          y + t * width, width, begins[t + 1] - begins[t],
          [&](int32_t i) { return row_at(begins[t] + i); },
          [&](int32_t i) { return weight[row_of[begins[t] + i]]; });
    }
  });
}

/// Returns the largest number of rows of a tile.
int64_t tile_rows(int64_t bytes_per_row, int64_t experts, int64_t rows) {
  const int64_t limit = std::min(std::max(kBufferBytes / bytes_per_row, experts), rows);
  const int64_t tiles = (rows + limit - 1) / std::max<int64_t>(limit, 1);
  return tiles > 1 ? std::min(limit, std::max(rows / tiles + rows / tiles / 16, experts)) : limit;
}

/// Copies the tokens' values to the rows of a tile.
template <class Scalar>
void gather(const TokenTile& tile, const Scalar* x, int64_t width, Scalar* rows) {
  at::parallel_for(0, std::ssize(tile.token), kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      std::copy_n(x + tile.token[r] * width, width, rows + r * width);
    }
  });
}

/// Computes all tiles; the tensors are contiguous, x in the type of the products, gates in that of
/// the sums.
template <class Scalar, class Weight>
Tensor run(const MlpLayer<Scalar, Weight>& layer, const RoutedMlpArguments& in) {
  using Sum = SumOf<Scalar>;
  const int64_t width = layer.width();
  const int64_t copies = layer.kIsQuantised ? 1 : 0;  // Rows as bytes.
  const auto bytes = static_cast<int64_t>((sizeof(Scalar) + copies) * (width + layer.stretch()) +
                                          sizeof(Sum) * width);
  const int64_t limit = tile_rows(bytes, layer.experts(), in.token.size(0));
  const auto options = in.x.options();
  const Tensor rows = at::empty({limit, width}, options);
  const Tensor active = at::empty({limit, layer.stretch()}, options);
  const Tensor sums = at::empty({limit, width}, in.gate.options());
  Tensor y = at::empty(in.x.sizes(), options);
  TokenTiles tiles(in.offsets, in.token, in.token_offsets);
  auto* const row = rows.mutable_data_ptr<Scalar>();
  for (TokenTile tile{}; tiles.next(limit, tile);) {
    gather(tile, in.x.const_data_ptr<Scalar>(), width, row);
    layer.forward(tile.offsets.data(), {row, nullptr, active.mutable_data_ptr<Scalar>(),
                                        sums.mutable_data_ptr<Sum>(), row});
    add_up(tile, tiles, in, row, width, y.mutable_data_ptr<Scalar>());
  }
  return y;
}

Tensor routed_mlp_cpu(const RoutedMlpArguments& given) {
  RoutedMlpArguments in = given;
  const at::ScalarType type = product_type(in.x.scalar_type(), in.w1);
  if (in.is_packed && !can_be_packed(in.x.scalar_type(), in.w1)) {
    fail("routed_mlp: {} weights cannot have been packed here", c10::toString(in.w1.scalar_type()));
  }
  for (Tensor* index : {&in.offsets, &in.token, &in.token_offsets, &in.token_row}) {
    *index = index->contiguous();
  }
  in.x = in.x.to(type).contiguous();
  in.gate = in.gate.to(type == at::kDouble ? at::kDouble : at::kFloat).contiguous();
  if (in.w1_scale) {
    const ExpertWeights weights{in.w1,        in.b1,        in.w2,       in.b2,
                                in.is_packed, *in.w1_scale, *in.w2_scale};
    return run(layer_of<float, int8_t>(weights, in.activation), in);
  }
  Tensor y;
  MOESAIC_DISPATCH_PRODUCTS(type, "routed_mlp", [&] {
    y = run(layer_of<scalar_t>({in.w1, in.b1, in.w2, in.b2, in.is_packed}, in.activation), in);
  });
  return y.to(given.x.scalar_type());
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  implement<RoutedMlpOperator, routed_mlp_cpu>(m);
}

}  // namespace
}  // namespace moesaic::ops
