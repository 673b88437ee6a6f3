// SPDX-License-Identifier: Apache-2.0
// Matrix products of one thread on panels that lie in its cache, by oneDNN's micro-kernel, and the
// layouts that it wants: the products of the experts. What runs over which panel is decided by
// mlp_layer.h.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "rows.h"

namespace moesaic::ops {

/// Types of two bytes, whose products the processor sums in pairs.
template <class Scalar>
constexpr bool kIsHalfWide = sizeof(Scalar) == 2;

/// Rows that run over a panel at a time.
constexpr int64_t kBlockRows = 256;

/// The depth that a product over rows, whose number differs from call to call, is padded to with
/// zeros: the micro-kernel is compiled once for each depth, and kept.
template <class Scalar>
constexpr int64_t padded_depth(int64_t depth) {
  constexpr int64_t kStep = kIsHalfWide<Scalar> ? 32 : 16;
  return (depth + kStep - 1) / kStep * kStep;
}

/// C = A B, or C += A B where `accumulate`, summed in the order of the depth.
template <class Scalar, class Left = Scalar, class Sum = SumOf<Scalar>>
struct Product {
  int64_t rows, depth, columns;
  const Left* a;  ///< [rows, depth]
  int64_t a_stride;
  /// [depth, columns] as pack_rows() and pack_columns() lay it out; types of two bytes need an even
  /// depth, int8 a multiple of 4.
  const Scalar* b;
  int64_t b_stride;  ///< Between rows of B, in columns.
  Sum* c;            ///< [rows, columns]
  int64_t c_stride;
  bool accumulate;
};

void multiply(const Product<float>& product);
void multiply(const Product<double>& product);
void multiply(const Product<c10::BFloat16>& product);
void multiply(const Product<c10::Half>& product);
/// Exact. There is none unless has_int8_matmul().
void multiply(const Product<int8_t, uint8_t, int32_t>& product);

/// Ends a thread's products when it goes out of scope, by an error too: the processor's tile
/// registers are free again afterwards.
class ProductsOfThread {
 public:
  ProductsOfThread() = default;
  ~ProductsOfThread();
  ProductsOfThread(const ProductsOfThread&) = delete;
  ProductsOfThread& operator=(const ProductsOfThread&) = delete;
};

/// How B lies for the products of a type of two bytes.
enum class ProductLayout {
  none,    ///< There are no such products: the operators compute in float32 and round.
  rows,    ///< Row by row.
  paired,  ///< Rows k and k + 1 interleaved.
};

/// Returns the layout that this processor's products want, which is found by multiplying; none
/// where MOESAIC_CPU=generic asks for it.
template <class Scalar>
ProductLayout product_layout();

/// Lays out B = from [depth, columns] as Product::b with b_stride `columns`; rows up to
/// padded_depth(depth) become zero.
template <class Scalar>
void pack_rows(const Scalar* from, int64_t stride, int64_t depth, int64_t columns, Scalar* to);
/// Interleaves four rows, as many times as the depth holds them.
void pack_rows(const int8_t* from, int64_t stride, int64_t depth, int64_t columns, int8_t* to);

/// Lays out B = from^T, from [columns, depth], as Product::b with b_stride `columns`. Types of two
/// bytes need an even depth.
template <class Scalar>
void pack_columns(const Scalar* from, int64_t stride, int64_t depth, int64_t columns, Scalar* to);

/// Lays out A = from^T, from [depth, rows], with a_stride padded_depth(depth); columns from `depth`
/// on become zero.
template <class Scalar>
void transpose(const Scalar* from, int64_t stride, int64_t depth, int64_t rows, Scalar* to);

}  // namespace moesaic::ops
