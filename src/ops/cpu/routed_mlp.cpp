// SPDX-License-Identifier: Apache-2.0
// Tokens are processed in lots whose rows fit a fixed buffer. The rows of an expert are in token
// order, so each lot has one contiguous range of rows of every expert.
#include "moesaic/ops/routed_mlp.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "../check.h"
#include "mlp_layer_bfloat16.h"
#include "moesaic/base/error.h"
#include "rows.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

// The memory beside input and output is half for rows, half for threads.
constexpr int64_t kBufferBytes = 7 << 20, kScratchBytes = 7 << 20;

/// Part of a routing for tokens [begin, end), with rows numbered from 0.
struct Lot {
  int64_t begin, end;
  std::vector<int32_t> offsets;  // [K + 1]
  std::vector<int32_t> token;    // Token of each row.
};

class Lots {
 public:
  Lots(const Tensor& offsets, const Tensor& token, const Tensor& token_offsets)
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
  bool next(int64_t limit, Lot& lot) {
    lot = {lot.end, lot.end, {0}, {}};
    if (lot.begin == tokens_) return false;
    const int32_t first = token_offsets_[lot.begin];
    while (lot.end < tokens_ &&
           (lot.end == lot.begin || token_offsets_[lot.end + 1] - first <= limit)) {
      ++lot.end;
    }
    for (size_t e = 0; e < ends_.size(); ++e) {
      for (; cursor_[e] < ends_[e] && token_[cursor_[e]] < lot.end; ++cursor_[e]) {
        place_[cursor_[e]] = static_cast<int32_t>(lot.token.size());
        lot.token.push_back(token_[cursor_[e]]);
      }
      lot.offsets.push_back(static_cast<int32_t>(lot.token.size()));
    }
    const int64_t pulled = token_offsets_[lot.end] - first;
    const auto found = static_cast<int64_t>(lot.token.size());
    if (found != pulled || found > limit) {
      fail("routed_mlp: tokens {} to {} pull {} rows, but the experts hold {} of them; {} fit",
           lot.begin, lot.end - 1, pulled, found, limit);
    }
    return true;
  }

  /// Returns the position of a row of the routing within its lot.
  int32_t place(int32_t row) const { return place_[row]; }

 private:
  const int32_t *token_, *token_offsets_;
  int64_t tokens_;
  std::vector<int32_t> ends_, cursor_, place_;
};

struct RoutedOperands {
  Tensor x, gate, w1, b1, w2, b2;
};

struct RowIndex {
  Tensor offsets, token, token_offsets, token_row;
};

template <class Scalar>
void fetch(const Scalar* row, int64_t width) {
  const auto* bytes = reinterpret_cast<const char*>(row);
  const int64_t size = width * static_cast<int64_t>(sizeof(Scalar));
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(bytes + at);
}

template <class Scalar>
void add_up(const Lot& lot, const Lots& lots, const RowIndex& index, const Tensor& gate,
            const Scalar* rows, int64_t width, Scalar* y) {
  const auto* begins = index.token_offsets.const_data_ptr<int32_t>();
  const auto* row_of = index.token_row.const_data_ptr<int32_t>();
  const auto* weight = gate.const_data_ptr<SumOf<Scalar>>();
  const auto row_at = [&](int32_t i) { return rows + lots.place(row_of[i]) * width; };
  at::parallel_for(lot.begin, lot.end, kRowsPerTask, [&](int64_t first, int64_t last) {
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

/// Computes all lots. Layer: MlpLayer<Scalar>, or Bfloat16Layer whose scratch is float32.
template <class Scalar, class Scratch, class Layer>
Tensor run(const Layer& layer, const RoutedOperands& in, const RowIndex& index) {
  const int64_t width = in.x.size(1), experts = in.w1.size(0);
  const int64_t fit = kBufferBytes / (width * static_cast<int64_t>(sizeof(Scalar)) + 1);
  const int64_t limit = std::min(std::max(fit, experts), index.token.size(0));
  const Tensor rows = at::empty({limit, width}, in.x.options());
  Tensor y = at::empty(in.x.sizes(), in.x.options());
  Lots lots(index.offsets, index.token, index.token_offsets);
  for (Lot lot{}; lots.next(limit, lot);) {
    typename Layer::ForwardArrays arrays{};
    arrays.x = in.x.const_data_ptr<Scalar>();
    arrays.token = lot.token.data();
    arrays.b1 = in.b1.const_data_ptr<Scalar>();
    arrays.b2 = in.b2.const_data_ptr<Scalar>();
    arrays.y = rows.mutable_data_ptr<Scalar>();
    const auto scratch_of = [&](int64_t rows) { return layer.forward_scratch(rows); };
    const int64_t block =
        rows_within<Scratch>(kScratchBytes, static_cast<int64_t>(lot.token.size()), scratch_of);
    for_blocks<Scratch>(
        lot.offsets.data(), experts, scratch_of(block),
        [&](const Segment& s, Scratch* scratch) { layer.forward(s, arrays, scratch); },
        std::max<int64_t>(block, 1));
    add_up(lot, lots, index, in.gate, rows.const_data_ptr<Scalar>(), width,
           y.mutable_data_ptr<Scalar>());
  }
  return y;
}

Tensor run_bfloat16(const RoutedOperands& in, const RowIndex& index, Activation activation) {
  if (Bfloat16Layer::possible(in.w1)) {
    return run<at::BFloat16, float>(Bfloat16Layer{in.w1, in.w2, activation}, in, index);
  }
  const auto wide = [](const Tensor& tensor) { return tensor.to(at::kFloat); };
  const RoutedOperands widened{wide(in.x),  in.gate,     wide(in.w1),
                               wide(in.b1), wide(in.w2), wide(in.b2)};
  return run<float, float>(MlpLayer<float>{widened.w1, widened.w2, activation}, widened, index)
      .to(at::kBFloat16);
}

Tensor routed_mlp_cpu(const Tensor& x, const Tensor& offsets, const Tensor& token,
                      const Tensor& gate, const Tensor& token_offsets, const Tensor& token_row,
                      const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                      int64_t activation_code) {
  check_routed_mlp(x, offsets, token, gate, token_offsets, token_row, w1, b1, w2, b2,
                   activation_code);
  const auto activation = static_cast<Activation>(activation_code);
  const RowIndex index{offsets.contiguous(), token.contiguous(), token_offsets.contiguous(),
                       token_row.contiguous()};
  const auto sums = x.scalar_type() == at::kBFloat16 ? at::kFloat : x.scalar_type();
  const RoutedOperands in{x.contiguous(), gate.to(sums).contiguous(),
                          packable(w1),   b1.contiguous(),
                          packable(w2),   b2.contiguous()};
  if (x.scalar_type() == at::kBFloat16) return run_bfloat16(in, index, activation);
  Tensor y;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "routed_mlp", [&] {
    y = run<scalar_t, scalar_t>(MlpLayer<scalar_t>{in.w1, in.w2, activation}, in, index);
  });
  return y;
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("routed_mlp", routed_mlp_cpu);
}

}  // namespace
}  // namespace moesaic::ops
