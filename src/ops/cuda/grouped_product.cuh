// SPDX-License-Identifier: Apache-2.0
// Products for one type of numbers; each type is compiled in a file of its own.
#pragma once

#include "../kernels/epilogue.h"
#include "../kernels/grouped_product.h"
#include "grouped_product.h"
#include "launch.h"

namespace moesaic::ops::kernels {

/// A double takes twice as many registers, so its tiles are small.
template <class T>
struct TileOf {
  using type = LargeTile;
};
template <>
struct TileOf<double> {
  using type = SmallTile;
};

template <class Kernel>
void launch_product(const Kernel& kernel, cudaStream_t stream) {
  using Tile = typename TileOf<typename Kernel::Scalar>::type;
  launch<Tile::kThreads, 2>(kernel, kernel.blocks(), Tile::kThreads,
                            Kernel::Product::shared_bytes(), stream);
}

template <class T>
void product_bias_activate(const ExpertRows& at, const T* a, const T* w, const T* bias,
                           int64_t depth, int64_t columns, Act kind, T* hidden, T* active,
                           cudaStream_t stream) {
  using Tile = typename TileOf<T>::type;
  launch_product(
      RowsTimesWeights<T, Tile, false, AddBiasActivate<T>>{a,
                                                           w,
                                                           at.offsets,
                                                           at.experts,
                                                           at.rows,
                                                           depth,
                                                           columns,
                                                           {hidden, active, bias, columns, kind}},
      stream);
}

template <class T>
void product_bias(const ExpertRows& at, const T* a, const T* w, const T* bias, int64_t depth,
                  int64_t columns, T* y, cudaStream_t stream) {
  using Tile = typename TileOf<T>::type;
  launch_product(
      RowsTimesWeights<T, Tile, false, AddBias<T>>{
          a, w, at.offsets, at.experts, at.rows, depth, columns, {y, bias, columns}},
      stream);
}

template <class T>
void product_activation_gradient(const ExpertRows& at, const T* grad, const T* w, const T* hidden,
                                 int64_t depth, int64_t columns, Act kind, T* grad_hidden,
                                 T* active, cudaStream_t stream) {
  using Tile = typename TileOf<T>::type;
  launch_product(RowsTimesWeights<T, Tile, true, ActivationGradient<T>>{grad,
                                                                        w,
                                                                        at.offsets,
                                                                        at.experts,
                                                                        at.rows,
                                                                        depth,
                                                                        columns,
                                                                        {hidden, grad_hidden,
                                                                         active, columns, kind}},
                 stream);
}

template <class T>
void product_transposed(const ExpertRows& at, const T* a, const T* w, int64_t depth,
                        int64_t columns, T* out, cudaStream_t stream) {
  using Tile = typename TileOf<T>::type;
  launch_product(
      RowsTimesWeights<T, Tile, true, Plain<T>>{
          a, w, at.offsets, at.experts, at.rows, depth, columns, {out, columns}},
      stream);
}

template <class T>
void product_of_rows(const ExpertRows& at, const T* left, const T* right, int64_t p, int64_t q,
                     T* out, cudaStream_t stream) {
  using Tile = typename TileOf<T>::type;
  launch_product(RowsTimesRows<T, Tile>{left, right, at.offsets, at.experts, p, q, out}, stream);
}

#define MOESAIC_INSTANTIATE_PRODUCTS(T)                                                            \
  template void product_bias_activate<T>(const ExpertRows&, const T*, const T*, const T*, int64_t, \
                                         int64_t, Act, T*, T*, cudaStream_t);                      \
  template void product_bias<T>(const ExpertRows&, const T*, const T*, const T*, int64_t, int64_t, \
                                T*, cudaStream_t);                                                 \
  template void product_activation_gradient<T>(const ExpertRows&, const T*, const T*, const T*,    \
                                               int64_t, int64_t, Act, T*, T*, cudaStream_t);       \
  template void product_transposed<T>(const ExpertRows&, const T*, const T*, int64_t, int64_t, T*, \
                                      cudaStream_t);                                               \
  template void product_of_rows<T>(const ExpertRows&, const T*, const T*, int64_t, int64_t, T*,    \
                                   cudaStream_t);

}  // namespace moesaic::ops::kernels
