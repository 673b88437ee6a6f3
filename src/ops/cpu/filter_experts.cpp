// SPDX-License-Identifier: Apache-2.0
// Rows are taken in pieces, so many that what lies between the two layers stays in cache. Gradients
// are sums over all rows of an expert: each piece has sums of its own, which are added in order, so
// that no bit depends on the number of threads.
#include "moesaic/ops/filter_experts.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../check.h"
#include "expert_work.h"
#include "large_memory.h"
#include "mlp_layer.h"
#include "panels.h"
#include "vector_clones.h"

namespace moesaic::ops {
namespace {

using at::Tensor;

constexpr int64_t kFilterPatches = 256;  // that lie in cache together
constexpr int64_t kRowsAhead = 6;        // that are fetched before they are gathered
constexpr int64_t kPieceRows = 512;      // of an expert, that share sums of gradients

/// to[r, j] += sum over the P patches of row r of patches[r P + p, j].
MOESAIC_VECTOR_CLONES
void add_patches(const float* patches, int64_t rows, int64_t count, int64_t columns, int64_t stride,
                 float* to) {
  for (int64_t r = 0; r < rows; ++r, to += stride) {
    for (int64_t p = 0; p < count; ++p, patches += stride) {
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) to[j] += patches[j];
    }
  }
}
MOESAIC_VECTOR_CLONES
void add_patches(const double* patches, int64_t rows, int64_t count, int64_t columns,
                 int64_t stride, double* to) {
  for (int64_t r = 0; r < rows; ++r, to += stride) {
    for (int64_t p = 0; p < count; ++p, patches += stride) {
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) to[j] += patches[j];
    }
  }
}

/// A row of a width that is known when the program runs, in whole lines: a call of memcpy takes
/// longer than so few bytes.
template <class Scalar>
inline void copy_short_row(const Scalar* from, int64_t width, Scalar* to) {
  constexpr int64_t kAtOnce = 64 / sizeof(Scalar);
  if (width < kAtOnce) {
    for (int64_t j = 0; j < width; ++j) to[j] = from[j];
    return;
  }
  int64_t j = 0;
  for (; j + kAtOnce <= width; j += kAtOnce) std::memcpy(to + j, from + j, 64);
  std::memcpy(to + width - kAtOnce, from + width - kAtOnce, 64);
}

template <class Scalar>
struct FilterLayer {
  PanelMatrix<Scalar> w;  // [d, J] of each expert
  int64_t patches, outputs;
  Activation activation;
  const TileKernels<Scalar>& kernels = tile_kernels<Scalar>();

  int64_t width() const { return w.rows; }
  int64_t filters() const { return w.columns; }
  int64_t filters_of_output() const { return filters() / outputs; }
  /// Between two patches in scratch; their last column is 1, whose gradient is the bias's.
  int64_t x_stride() const { return spread<Scalar>(width() + 1); }
  int64_t chunk_rows() const { return std::max<int64_t>(1, kFilterPatches / patches); }
  int64_t chunk_patches() const { return chunk_rows() * patches; }

  struct Arrays {
    const Scalar* x;       // [T, P, d]
    const int32_t* token;  // [A]
    const Scalar* b;       // [K, J]
    Scalar* hidden;        // A P J numbers, see hidden_at(); null: not kept
    Scalar* y;             // [A, C]
  };
  struct BackwardArrays {
    const Scalar* x;
    const int32_t* token;
    const Scalar *hidden, *grad;  // grad [A, C]
  };

  /// What the activation sees lies chunk by chunk, and in a chunk panel by panel: [patches, columns
  /// of the panel]. Rows of J numbers would fall into a few sets of the caches.
  int64_t hidden_at(const Segment& chunk, int64_t column) const {
    return patches * (chunk.begin * filters() + chunk.rows() * column);
  }

  /// Columns [first, first + count) of a panel belong to one output.
  template <class Use>
  void for_outputs(int64_t column, int64_t columns, Use use) const {
    const int64_t each = filters_of_output();
    for (int64_t first = 0; first < columns;) {
      const int64_t output = (column + first) / each;
      const int64_t count = std::min(columns - first, (output + 1) * each - column - first);
      use(output, first, count);
      first += count;
    }
  }

  int64_t packed_size() const {
    const int64_t panels = (filters() + kernels.columns - 1) / kernels.columns;
    return panels * panel_size();
  }
  int64_t panel_size() const { return whole_lines(width() * kernels.columns); }
  int64_t forward_scratch() const {
    return packed_size() + chunk_patches() * (x_stride() + kernels.columns) +
           chunk_patches() * kernels.columns + chunk_rows() * kernels.columns;
  }

  /// Calls use(chunk) for pieces of `s` that lie in cache.
  template <class Use>
  void for_chunks(const Segment& s, Use use) const {
    for (int64_t begin = s.begin; begin < s.end; begin += chunk_rows()) {
      use(Segment{s.expert, begin, std::min(begin + chunk_rows(), s.end)});
    }
  }

  void forward(const Segment& s, const Arrays& in, Scalar* scratch) const {
    Scalar* const packed = scratch;
    for (int64_t column = 0, at = 0; column < filters();
         column += kernels.columns, at += panel_size()) {
      kernels.pack(w.panel(s.expert, 0, width(), column, kernels.columns), packed + at, nullptr);
    }
    for_chunks(
        s, [&](const Segment& chunk) { forward_chunk(chunk, in, packed, packed + packed_size()); });
  }

  void forward_chunk(const Segment& s, const Arrays& in, Scalar* packed, Scalar* scratch) const {
    const int64_t panel = kernels.columns, count = s.rows() * patches;
    Scalar* const x = scratch;
    Scalar* const seen = x + chunk_patches() * x_stride();
    Scalar* const active = seen + chunk_patches() * panel;
    Scalar* const sums = active + chunk_patches() * panel;
    for (int64_t r = 0; r < s.rows(); ++r) {
      if (s.begin + r + kRowsAhead < s.end) fetch(in.x, in.token[s.begin + r + kRowsAhead]);
      gather(in.x, in.token[s.begin + r], x, r);
    }
    Scalar* const y = in.y + s.begin * outputs;
    std::fill_n(y, s.rows() * outputs, Scalar(0));
    for (int64_t column = 0; column < filters(); column += panel, packed += panel_size()) {
      const int64_t columns = std::min(panel, filters() - column);
      Scalar* const z = in.hidden != nullptr ? in.hidden + hidden_at(s, column) : seen;
      kernels.multiply({count, width(), columns, x, x_stride(), false, packed,
                        in.b + s.expert * filters() + column, z, columns, false, false, Prefetch{},
                        nullptr});
      kernels.activate(activation, {count, columns, columns, panel}, z, active);
      std::fill_n(sums, s.rows() * panel, Scalar(0));
      add_patches(active, s.rows(), patches, columns, panel, sums);
      for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t of_it) {
        for (int64_t r = 0; r < s.rows(); ++r) {
          const Scalar* const from = sums + r * panel + first;
          Scalar lanes[4] = {};
          int64_t j = 0;
          for (; j + 4 <= of_it; j += 4) {
            for (int64_t lane = 0; lane < 4; ++lane) lanes[lane] += from[j + lane];
          }
          for (; j < of_it; ++j) lanes[0] += from[j];
          y[r * outputs + output] += (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
        }
      });
    }
  }

  int64_t backward_scratch() const {
    return chunk_patches() * (x_stride() + kernels.columns) + chunk_rows() * kernels.columns;
  }

  /// Adds to sums [d + 1, J], the last row being the bias's. Rows whose gradient is exactly zero,
  /// as that of a softmax that is sure is, cost nothing.
  void backward(const Segment& s, const BackwardArrays& in, Scalar* sums, Scalar* scratch) const {
    std::vector<int64_t> rows;  // of the chunk, counted from its first
    for_chunks(s, [&](const Segment& chunk) {
      rows.clear();
      for (int64_t r = 0; r < chunk.rows(); ++r) {
        const Scalar* const g = in.grad + (chunk.begin + r) * outputs;
        if (std::any_of(g, g + outputs, [](Scalar v) { return v != Scalar(0); })) rows.push_back(r);
      }
      if (!rows.empty()) backward_chunk(chunk, rows, in, sums, scratch);
    });
  }

  void backward_chunk(const Segment& s, const std::vector<int64_t>& rows, const BackwardArrays& in,
                      Scalar* sums, Scalar* scratch) const {
    const int64_t panel = kernels.columns, count = static_cast<int64_t>(rows.size()) * patches;
    Scalar* const x = scratch;
    Scalar* const grad = x + chunk_patches() * x_stride();
    Scalar* const factors = grad + chunk_patches() * panel;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i + kRowsAhead < rows.size()) fetch(in.x, in.token[s.begin + rows[i + kRowsAhead]]);
      gather(in.x, in.token[s.begin + rows[i]], x, static_cast<int64_t>(i));
    }
    for (int64_t column = 0; column < filters(); column += panel) {
      const int64_t columns = std::min(panel, filters() - column);
      const Scalar* const z = in.hidden + hidden_at(s, column);
      for (size_t first = 0; first < rows.size();) {  // rows that lie side by side, at once
        size_t last = first + 1;
        while (last < rows.size() && rows[last] == rows[last - 1] + 1) ++last;
        const auto run = static_cast<int64_t>(last - first);
        Scalar* const g = grad + static_cast<int64_t>(first) * patches * panel;
        spread_gradient(in.grad + (s.begin + rows[first]) * outputs, run, column, columns, factors);
        kernels.scale_by_slope(activation, {run * patches, columns, columns, panel},
                               z + rows[first] * patches * columns, factors, patches, g);
        first = last;
      }
      kernels.multiply({width() + 1, count, columns, x, x_stride(), true, grad, nullptr,
                        sums + column, filters(), true, false, Prefetch{}, nullptr});
    }
  }

  /// Each filter gets the gradient of its row's output: to [rows, panel].
  void spread_gradient(const Scalar* from, int64_t rows, int64_t column, int64_t columns,
                       Scalar* to) const {
    for (int64_t r = 0; r < rows; ++r, from += outputs, to += kernels.columns) {
      for_outputs(column, columns, [&](int64_t output, int64_t first, int64_t of_it) {
        std::fill_n(to + first, of_it, from[output]);
      });
    }
  }

 private:
  /// The hardware cannot guess where the inputs of an expert lie.
  void fetch(const Scalar* from, int32_t token) const {
    const auto* bytes = reinterpret_cast<const char*>(from + token * patches * width());
    const auto size = static_cast<int64_t>(sizeof(Scalar)) * patches * width();
    for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(bytes + at);
  }

  void gather(const Scalar* from, int32_t token, Scalar* to, int64_t row) const {
    from += token * patches * width();
    to += row * patches * x_stride();
    for (int64_t p = 0; p < patches; ++p, from += width(), to += x_stride()) {
      copy_short_row(from, width(), to);
      to[width()] = Scalar(1);
    }
  }
};

/// The rows of all experts, in pieces.
std::vector<Segment> pieces_of(const Tensor& offsets) {
  const auto* begins = offsets.const_data_ptr<int32_t>();
  std::vector<Segment> pieces;
  for (int64_t e = 0; e + 1 < offsets.size(0); ++e) {
    for (int64_t r = begins[e]; r < begins[e + 1]; r += kPieceRows) {
      pieces.push_back({e, r, std::min<int64_t>(r + kPieceRows, begins[e + 1])});
    }
  }
  return pieces;
}

int64_t filled(const Tensor& offsets) {
  return offsets.const_data_ptr<int32_t>()[offsets.size(0) - 1];
}

/// Calls use(number of the piece, scratch of `scalars`) for all pieces.
template <class Scalar, class Use>
void for_pieces(const std::vector<Segment>& pieces, int64_t scalars, Use use) {
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
    constexpr int64_t kLineScalars = 64 / sizeof(Scalar);
    const Tensor memory =
        at::empty({scalars + kLineScalars}, c10::CppTypeToScalarType<Scalar>::value);
    auto at = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr<Scalar>());
    auto* const scratch = reinterpret_cast<Scalar*>((at + 63) / 64 * 64);
    for (int64_t i = first; i < last; ++i) use(i, scratch);
  });
}

template <class Scalar>
FilterLayer<Scalar> layer_of(const Tensor& x, const Tensor& w, int64_t outputs,
                             int64_t activation) {
  return {w, x.size(1), outputs, static_cast<Activation>(activation)};
}

/// The sum of each row's patches: [A, d]; rows that no expert has are left out.
template <class Scalar>
Tensor sums_of_patches(const Tensor& x, const Tensor& token, int64_t rows) {
  const int64_t patches = x.size(1), width = x.size(2);
  Tensor sums = at::zeros({token.size(0), width}, x.options());
  const auto* const from = x.const_data_ptr<Scalar>();
  const auto* const tokens = token.const_data_ptr<int32_t>();
  auto* const to = sums.mutable_data_ptr<Scalar>();
  at::parallel_for(0, rows, kPieceRows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      add_patches(from + tokens[r] * patches * width, 1, patches, width, width, to + r * width);
    }
  });
  return sums;
}

/// Without an activation the filters of an output are one: their sum. y = sums w + P b, where w
/// [d, C] and b [C] are summed over the filters.
Tensor linear_filters(const Tensor& sums, const Tensor& offsets, const Tensor& w, const Tensor& b,
                      int64_t outputs, int64_t patches) {
  const Tensor whole_w = w.view({w.size(0), w.size(1), outputs, -1}).sum(3);
  const Tensor whole_b = b.view({b.size(0), outputs, -1}).sum(2) * patches;
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  Tensor y = at::zeros({sums.size(0), outputs}, sums.options());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    y.narrow(0, begins[e], count)
        .copy_(at::addmm(whole_b[e], sums.narrow(0, begins[e], count), whole_w[e]));
  }
  return y;
}

std::tuple<Tensor, Tensor> linear_filters_backward(const Tensor& grad, const Tensor& sums,
                                                   const Tensor& offsets, const Tensor& w,
                                                   int64_t patches) {
  const int64_t outputs = grad.size(1), each = w.size(2) / outputs;
  const auto* const begins = offsets.const_data_ptr<int32_t>();
  Tensor grad_w = at::zeros({w.size(0), w.size(1), outputs}, w.options());
  Tensor grad_b = at::zeros({w.size(0), outputs}, w.options());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    const Tensor own = grad.narrow(0, begins[e], count);
    grad_w[e].copy_(sums.narrow(0, begins[e], count).t().mm(own));
    grad_b[e].copy_(own.sum(0) * patches);
  }
  return {grad_w.repeat_interleave(each, 2), grad_b.repeat_interleave(each, 1)};
}

std::tuple<Tensor, Tensor> filter_experts_cpu(const Tensor& x_in, const Tensor& offsets_in,
                                              const Tensor& token_in, const Tensor& w_in,
                                              const Tensor& b_in, int64_t outputs,
                                              int64_t activation, bool keep_hidden) {
  check_filter_experts(x_in, offsets_in, token_in, w_in, b_in, outputs, activation);
  const Tensor x = x_in.contiguous(), w = packable(w_in), b = b_in.contiguous();
  const Tensor offsets = offsets_in.contiguous(), token = token_in.contiguous();
  const int64_t rows = token.size(0);
  const int64_t kept = keep_hidden ? kept_numbers(x, token, w, activation) : 0;
  if (static_cast<Activation>(activation) == Activation::identity) {
    Tensor sums;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts", [&] {
      sums = sums_of_patches<scalar_t>(x, token, filled(offsets));
    });
    const Tensor y = linear_filters(sums, offsets, w.contiguous(), b, outputs, x.size(1));
    return {y, kept > 0 ? sums.view({-1}) : at::empty({0}, x.options())};
  }
  Tensor y = at::empty({rows, outputs}, x.options());
  Tensor hidden = empty_large({kept}, x.options());
  const std::vector<Segment> pieces = pieces_of(offsets);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts", [&] {
    const auto layer = layer_of<scalar_t>(x, w, outputs, activation);
    const typename FilterLayer<scalar_t>::Arrays arrays{
        x.const_data_ptr<scalar_t>(), token.const_data_ptr<int32_t>(), b.const_data_ptr<scalar_t>(),
        keep_hidden ? hidden.mutable_data_ptr<scalar_t>() : nullptr,
        y.mutable_data_ptr<scalar_t>()};
    for_pieces<scalar_t>(pieces, layer.forward_scratch(), [&](int64_t i, scalar_t* scratch) {
      layer.forward(pieces[i], arrays, scratch);
    });
  });
  y.slice(0, filled(offsets)).zero_();
  hidden.slice(0, keep_hidden ? filled(offsets) * x.size(1) * w.size(2) : 0).zero_();
  return {y, hidden};
}

/// sums [pieces, d + 1, J] of each expert's pieces in order.
template <class Scalar>
void add_pieces(const std::vector<Segment>& pieces, const Tensor& sums, Tensor& w, Tensor& b) {
  const int64_t width = w.size(1) * w.size(2), filters = w.size(2);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Scalar* const from = sums.const_data_ptr<Scalar>() + i * (width + filters);
    Scalar* const to_w = w.mutable_data_ptr<Scalar>() + pieces[i].expert * width;
    Scalar* const to_b = b.mutable_data_ptr<Scalar>() + pieces[i].expert * filters;
    for (int64_t j = 0; j < width; ++j) to_w[j] += from[j];
    for (int64_t j = 0; j < filters; ++j) to_b[j] += from[width + j];
  }
}

std::tuple<Tensor, Tensor> filter_experts_backward_cpu(const Tensor& grad_in, const Tensor& x_in,
                                                       const Tensor& offsets_in,
                                                       const Tensor& token_in,
                                                       const Tensor& hidden_in, const Tensor& w_in,
                                                       int64_t activation) {
  check_filter_experts_backward(grad_in, x_in, offsets_in, token_in, hidden_in, w_in, activation);
  const Tensor grad = grad_in.contiguous(), x = x_in.contiguous(), hidden = hidden_in.contiguous();
  const Tensor offsets = offsets_in.contiguous(), token = token_in.contiguous();
  if (static_cast<Activation>(activation) == Activation::identity) {
    return linear_filters_backward(grad, hidden.view({-1, x.size(2)}), offsets, w_in, x.size(1));
  }
  const Tensor w = packable(w_in);
  Tensor grad_w = at::zeros(w.sizes(), w.options());
  Tensor grad_b = at::zeros({w.size(0), w.size(2)}, w.options());
  const std::vector<Segment> pieces = pieces_of(offsets);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "filter_experts_backward", [&] {
    const auto layer = layer_of<scalar_t>(x, w, grad.size(1), activation);
    const Tensor sums =
        at::zeros({static_cast<int64_t>(pieces.size()), w.size(1) + 1, w.size(2)}, w.options());
    const typename FilterLayer<scalar_t>::BackwardArrays arrays{
        x.const_data_ptr<scalar_t>(), token.const_data_ptr<int32_t>(),
        hidden.const_data_ptr<scalar_t>(), grad.const_data_ptr<scalar_t>()};
    for_pieces<scalar_t>(pieces, layer.backward_scratch(), [&](int64_t i, scalar_t* scratch) {
      layer.backward(pieces[i], arrays, sums.mutable_data_ptr<scalar_t>() + i * sums.stride(0),
                     scratch);
    });
    add_pieces<scalar_t>(pieces, sums, grad_w, grad_b);
  });
  return {grad_w, grad_b};
}

TORCH_LIBRARY_IMPL(moesaic, CPU, m) {
  m.impl("filter_experts", filter_experts_cpu);
  m.impl("filter_experts_backward", filter_experts_backward_cpu);
}

}  // namespace
}  // namespace moesaic::ops
