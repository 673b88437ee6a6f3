// SPDX-License-Identifier: Apache-2.0
#include "../kernels/epilogue.h"
#include "../kernels/expert_rows.h"
#include "grouped_product.h"
#include "launch.h"
#include "pieces.h"

namespace moesaic::ops::kernels {
namespace {

template <class T, int Count, class Epilogue>
void launch_pass(const ExpertRows& at, const T* from, int64_t columns, const Epilogue& epilogue,
                 cudaStream_t stream) {
  const EpiloguePass<T, Count, Epilogue> kernel{
      from,    at.offsets, at.experts, at.rows, columns, lanes_for(columns / Count, kPassThreads),
      epilogue};
  launch<kPassThreads>(kernel, kernel.blocks(), kPassThreads, 0, stream);
}

}  // namespace

template <class T>
void pass_bias_activate(const ExpertRows& at, const T* product, const T* bias, int64_t columns,
                        Act kind, T* hidden, T* active, cudaStream_t stream) {
  with_pieces<T>(columns, {product, bias, hidden, active}, [&](auto count) {
    launch_pass<T, decltype(count)::value>(
        at, product, columns, AddBiasActivate<T>{hidden, active, bias, columns, kind}, stream);
  });
}

template <class T>
void pass_bias(const ExpertRows& at, const T* product, const T* bias, int64_t columns, T* y,
               cudaStream_t stream) {
  with_pieces<T>(columns, {product, bias, y}, [&](auto count) {
    launch_pass<T, decltype(count)::value>(at, product, columns, AddBias<T>{y, bias, columns},
                                           stream);
  });
}

template <class T>
void pass_activation_gradient(const ExpertRows& at, const T* product, const T* hidden,
                              int64_t columns, Act kind, T* grad_hidden, T* active,
                              cudaStream_t stream) {
  with_pieces<T>(columns, {product, hidden, grad_hidden, active}, [&](auto count) {
    launch_pass<T, decltype(count)::value>(
        at, product, columns, ActivationGradient<T>{hidden, grad_hidden, active, columns, kind},
        stream);
  });
}

int64_t partial_sums(const ExpertRows& at, int64_t columns) {
  return row_tile_bound(at.rows, at.experts, kSumRows) * columns;
}

template <class T>
void sum_expert_rows(const ExpertRows& at, const T* from, int64_t columns, Sum<T>* partial, T* out,
                     cudaStream_t stream) {
  const SumTiles<T> tiles{from, at.offsets, at.experts, at.rows, columns, partial};
  launch<kPassThreads>(tiles, tiles.blocks(), kPassThreads, 0, stream);
  const SumPartials<T> sums{partial, at.offsets, at.experts, columns, out};
  launch<kPassThreads>(sums, sums.blocks(), kPassThreads, 0, stream);
}

template <class T>
void clear_idle_experts(const ExpertRows& at, T* to, int64_t size, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 64;
  const int64_t each = min(divide_up<int64_t>(size, kPassThreads), kMaxBlocks);
  const ClearIdleExperts<T> kernel{to, at.offsets, at.experts, size, each};
  launch<kPassThreads>(kernel, kernel.blocks(), kPassThreads, 0, stream);
}

// Only bfloat16 products of at::_grouped_mm need these passes.
template void pass_bias_activate<BFloat16>(const ExpertRows&, const BFloat16*, const BFloat16*,
                                           int64_t, Act, BFloat16*, BFloat16*, cudaStream_t);
template void pass_bias<BFloat16>(const ExpertRows&, const BFloat16*, const BFloat16*, int64_t,
                                  BFloat16*, cudaStream_t);
template void pass_activation_gradient<BFloat16>(const ExpertRows&, const BFloat16*,
                                                 const BFloat16*, int64_t, Act, BFloat16*,
                                                 BFloat16*, cudaStream_t);
template void clear_idle_experts<BFloat16>(const ExpertRows&, BFloat16*, int64_t, cudaStream_t);

template void sum_expert_rows<float>(const ExpertRows&, const float*, int64_t, float*, float*,
                                     cudaStream_t);
template void sum_expert_rows<double>(const ExpertRows&, const double*, int64_t, double*, double*,
                                      cudaStream_t);
template void sum_expert_rows<BFloat16>(const ExpertRows&, const BFloat16*, int64_t, float*,
                                        BFloat16*, cudaStream_t);

}  // namespace moesaic::ops::kernels
