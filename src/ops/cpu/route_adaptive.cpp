// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/route_adaptive.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "../check.h"
#include "../route_arguments.h"
#include "moesaic/ops/diverged.h"
#include "row_layout.h"

namespace moesaic::ops {
namespace {

/// Rule for the experts of a token: those of `columns` whose logit is at least `min`.
template <class Scalar>
struct Threshold {
  const Scalar* logits;
  int64_t experts;
  const std::vector<int32_t>& columns;
  Scalar min;

  /// Returns a bit mask of the token's experts among the 64 slots from `first` on.
  uint64_t passed(int64_t token, int64_t first) const {
    const Scalar* logit = logits + token * experts;
    const auto count = std::min<int64_t>(static_cast<int64_t>(columns.size()) - first, 64);
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; ++i) {
      bits |= static_cast<uint64_t>(logit[columns[first + i]] >= min ? 1 : 0) << i;
    }
    return bits;
  }
  /// Adds a token's rows to `counts`; returns false where a logit is NaN.
  bool count(int64_t token, int32_t* counts) const {
    bool good = true;
    for (size_t slot = 0; slot < columns.size(); ++slot) {
      const Scalar logit = logits[token * experts + columns[slot]];
      good &= logit == logit;
      counts[slot] += logit >= min ? 1 : 0;
    }
    return good;
  }
};

/// Returns the smallest number of the logits' type that is not below the threshold.
template <class Scalar>
Scalar rounded_up(double threshold) {
  const auto rounded = static_cast<Scalar>(threshold);
  const bool below = static_cast<double>(rounded) < threshold;
  return below ? std::nextafter(rounded, std::numeric_limits<Scalar>::infinity()) : rounded;
}

template <class Scalar>
std::vector<int32_t> count_adaptive(const Segments& segments, const Threshold<Scalar>& select) {
  const auto slots = static_cast<int64_t>(select.columns.size());
  std::vector<int32_t> rows(segments.count() * slots, 0);
  std::vector<int64_t> bad(segments.count(), -1);
  at::parallel_for(0, segments.count(), segment_grain(segments), [&](int64_t from, int64_t to) {
    for (int64_t s = from; s < to; ++s) {
      for (int64_t t = segments.begin(s); t < segments.end(s); ++t) {
        if (!select.count(t, rows.data() + s * slots) && bad[s] < 0) bad[s] = t;
      }
    }
  });
  for (const int64_t token : bad) {
    if (token >= 0) {
      throw Diverged(fmt::format("route_adaptive: the logits of token {} are NaN", token));
    }
  }
  return rows;
}

template <class Scalar>
void fill_adaptive(const Segments& segments, const Threshold<Scalar>& select, int64_t bound,
                   const RoutingArrays<Scalar>& out) {
  const auto slots = static_cast<int64_t>(select.columns.size());
  std::vector<int32_t> rows = count_adaptive(segments, select);
  std::vector<int32_t> pulled(segments.count() + 1);
  lay_out_rows(segments.count(), slots, rows.data(), out.offsets, pulled.data());
  at::parallel_for(0, segments.count(), segment_grain(segments), [&](int64_t from, int64_t to) {
    for (int64_t s = from; s < to; ++s) {
      int32_t* cursor = rows.data() + s * slots;
      int32_t next = pulled[s];
      for (int64_t t = segments.begin(s); t < segments.end(s); ++t) {
        out.token_offsets[t] = next;
        for (int64_t first = 0; first < slots; first += 64) {
          for (uint64_t bits = select.passed(t, first); bits != 0; bits &= bits - 1) {
            const int32_t row = cursor[first + std::countr_zero(bits)]++;
            out.token[row] = static_cast<int32_t>(t);
            out.gate[row] = Scalar(1);
            out.token_row[next++] = row;
          }
        }
      }
    }
  });
  const int32_t filled = pulled[segments.count()];
  out.token_offsets[segments.cut.tokens] = filled;
  out.clear_from(filled, bound);
}

RowTensors route_adaptive_cpu(const at::Tensor& logits_in, const AdaptiveOptions& options) {
  check_route_adaptive(logits_in, options);
  const at::Tensor logits = logits_in.contiguous();
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  std::vector<int32_t> columns(options.kept.begin(), options.kept.end());
  if (columns.empty()) {
    columns.resize(experts);
    std::iota(columns.begin(), columns.end(), 0);
  }
  const auto computed = static_cast<int64_t>(columns.size());
  const int64_t bound = tokens * computed;
  const auto index = logits.options().dtype(at::kInt);
  const at::Tensor offsets = at::empty({computed + 1}, index);
  const at::Tensor token = at::empty({bound}, index);
  const at::Tensor gate = at::empty({bound}, logits.options());
  const at::Tensor token_offsets = at::empty({tokens + 1}, index);
  const at::Tensor token_row = at::empty({bound}, index);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "route_adaptive", [&] {
    fill_adaptive<scalar_t>(
        Segments(TokenGroups(tokens, 0), kTokensPerSegment),
        {logits.const_data_ptr<scalar_t>(), experts, columns,
         rounded_up<scalar_t>(options.threshold)},
        bound,
        {offsets.mutable_data_ptr<int32_t>(), token.mutable_data_ptr<int32_t>(),
         token_offsets.mutable_data_ptr<int32_t>(), token_row.mutable_data_ptr<int32_t>(),
         gate.mutable_data_ptr<scalar_t>()});
  });
  return {offsets, token, gate, token_offsets, token_row};
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("route_adaptive", AdaptiveOperator::unpacked<route_adaptive_cpu>);
}

}  // namespace
}  // namespace moesaic::ops
