// SPDX-License-Identifier: Apache-2.0
// Dense products on panels that lie in cache: the inner loops of the experts. One table of
// functions for each instruction set, chosen once from what the processor has.
//
// A product C = A B walks over panels of B: `columns` columns of it are packed side by side, so
// that the loops read one stream, and all rows of A run over the panel while it is in the L2 cache.
#pragma once

#include <cstdint>

#include "moesaic/ops/activation.h"

namespace moesaic::ops {

/// Memory that will be wanted soon: `rows` stretches of so many bytes, `stride` bytes apart.
struct Prefetch {
  const char* base = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t bytes = 0;
};

/// A matrix of which a panel is taken: element (k, j) lies at data[k * stride + j], or, transposed,
/// at data[j * stride + k].
template <class Scalar>
struct PanelSource {
  const Scalar* data;
  int64_t stride, depth, columns;
  bool transposed;

  /// What to fetch before it is packed.
  Prefetch prefetch() const {
    constexpr auto kSize = static_cast<int64_t>(sizeof(Scalar));
    return {reinterpret_cast<const char*>(data), stride * kSize, transposed ? columns : depth,
            (transposed ? depth : columns) * kSize};
  }
};

/// c[i, j] = start + sum over k of a(i, k) b[k, j] for one packed panel of b; start is what c holds
/// where `accumulate`, else bias[j].
template <class Scalar>
struct PanelProduct {
  int64_t rows, depth,
      columns;  ///< of C: rows and columns (at most TileKernels::columns); sum over depth
  const Scalar* a;
  int64_t a_stride;    ///< between rows of A, or between its columns where `a_by_columns`
  bool a_by_columns;   ///< a(i, k) = a[k * a_stride + i] instead of a[i * a_stride + k]
  Scalar* b;           ///< packed, or room for it
  const Scalar* bias;  ///< [columns]; null: 0
  Scalar* c;
  int64_t c_stride;
  bool accumulate;
  bool stream;  ///< C is large and not read again soon: past the caches, where its lines allow it
  Prefetch next;
  /// Where b comes from, to be packed by the first rows that meet it; null: it is packed.
  const PanelSource<Scalar>* unpacked = nullptr;
};

/// c[row, j] = bias[j] + sum over k of row[k] b[k, j] for the rows of groups, in their order. Group
/// g is `rows` rows side by side from x[g] on, and has the weights at b[g] + b_at: [depth + 1,
/// stride], the last row being the bias, the stride one or two vectors (group_stride()), of which
/// `columns` count.
template <class Scalar>
struct GroupProduct {
  const Scalar* const* x;
  const Scalar* const* b;
  int64_t b_at;
  int64_t groups, rows, depth, columns;
  const Scalar* const* next;  ///< a group for each group, to be fetched for later; null: none
  Scalar* c;                  ///< [groups * rows, columns]
};

/// sums[g][k, j] += sum over the rows of group g of row[k] grad[row, j], and in the last row the
/// sum of grad[row, j]; sums[g] + sums_at as the weights of GroupProduct, and may be that of
/// several groups.
template <class Scalar>
struct GroupGradient {
  const Scalar* const* x;
  Scalar* const* sums;
  int64_t sums_at;
  int64_t groups, rows, depth, columns;
  const Scalar* const* next;  ///< as in GroupProduct
  const Scalar* grad;         ///< [groups * rows, stride]
};

/// Factors of a Block's numbers: `repeat` rows after another have the same. For each of their
/// columns one, rows of factors being as far apart as those that they are for; or one for all.
template <class Scalar>
struct Factors {
  const Scalar* values;
  int64_t repeat;
  bool for_all_columns;
};

/// Where an activation is applied: pieces of matrices, with the distances between their rows.
struct Block {
  int64_t rows, columns, in_stride, out_stride;
};

template <class Scalar>
struct TileKernels {
  const char* name;  ///< of the instruction set
  int64_t columns;   ///< width of a packed panel; a panel of depth K takes K * columns scalars
  void (*multiply)(const PanelProduct<Scalar>&);
  /// Columns beyond the source's become zero. `sums`, unless null, gets each column's sum.
  void (*pack)(const PanelSource<Scalar>&, Scalar* panel, Scalar* sums);
  /// out = act(in); they may be the same.
  void (*activate)(Activation, const Block&, const Scalar* in, Scalar* out);
  /// grad *= act'(in), copied to grad_too, and out = act(in). `grad` has the out_stride, the others
  /// the in_stride.
  void (*activate_backward)(Activation, const Block&, const Scalar* in, Scalar* grad, Scalar* out,
                            Scalar* grad_too);
  /// grad[i, j] = the factor of row i and column j times act'(in[i, j]).
  void (*scale_by_slope)(Activation, const Block&, const Scalar* in, const Factors<Scalar>&,
                         Scalar* grad);
  /// Between two rows of a group's weights.
  int64_t group_stride(int64_t filters) const {
    return filters <= columns / 2 ? columns / 2 : columns;
  }
  void (*multiply_groups)(const GroupProduct<Scalar>&);
  void (*add_products)(const GroupGradient<Scalar>&);
};

/// The best table for this processor. MOESAIC_CPU=generic|avx2|avx512 asks for a lesser one.
template <class Scalar>
const TileKernels<Scalar>& tile_kernels();
template <>
const TileKernels<float>& tile_kernels<float>();
template <>
const TileKernels<double>& tile_kernels<double>();

/// The tables themselves, null where the build has none; they may be called only where the
/// processor has the instructions.
template <class Scalar>
const TileKernels<Scalar>* tile_kernels_avx512();
template <class Scalar>
const TileKernels<Scalar>* tile_kernels_avx2();
template <class Scalar>
const TileKernels<Scalar>* tile_kernels_generic();

}  // namespace moesaic::ops
