// SPDX-License-Identifier: Apache-2.0
#include "move_rows.h"

#include "../kernels/move_rows.h"
#include "launch.h"
#include "pieces.h"

namespace moesaic::ops::kernels {

template <class T>
void dispatch_rows(const RowCopies<T>& in, cudaStream_t stream) {
  with_pieces<T>(in.width, {in.from, in.to}, [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    const int lanes = lanes_for(in.width / kCount, kWarp);
    const DispatchRows<T, kCount> kernel{in.from,   in.token_offsets, in.token_row, in.to,
                                         in.tokens, in.row_bound,     in.width,     lanes};
    launch<kMoveThreads>(kernel,
                         divide_up<int64_t>(max<int64_t>(in.tokens, 1) * lanes, kMoveThreads),
                         kMoveThreads, 0, stream);
  });
}

template <class T>
void sum_rows(const RowSums<T>& in, cudaStream_t stream) {
  with_pieces<T>(in.width, {in.from, in.to, in.bias.values}, [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    const int lanes = lanes_for(in.width / kCount, kWarp);
    const SumRows<T, kCount> kernel{in.from,      in.gate, in.token_offsets,
                                    in.token_row, in.to,   in.tokens,
                                    in.width,     lanes,   in.bias};
    launch<kMoveThreads>(kernel, divide_up<int64_t>(in.tokens * lanes, kMoveThreads), kMoveThreads,
                         0, stream);
  });
}

template <class T>
void combine_backward(const CombineGradients<T>& in, cudaStream_t stream) {
  with_pieces<T>(in.width, {in.grad, in.rows, in.grad_rows, in.bias.values}, [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    const int lanes = lanes_for(in.width / kCount, kWarp);
    const CombineBackward<T, kCount> kernel{
        in.grad,      in.rows,   in.gate,      in.token_offsets, in.token_row, in.grad_rows,
        in.grad_gate, in.tokens, in.row_bound, in.width,         lanes,        in.bias};
    launch<kMoveThreads>(kernel,
                         divide_up<int64_t>(max<int64_t>(in.tokens, 1) * lanes, kMoveThreads),
                         kMoveThreads, kernel.shared_bytes(kMoveThreads), stream);
  });
}

#define MOESAIC_INSTANTIATE(T)                                       \
  template void dispatch_rows<T>(const RowCopies<T>&, cudaStream_t); \
  template void sum_rows<T>(const RowSums<T>&, cudaStream_t);        \
  template void combine_backward<T>(const CombineGradients<T>&, cudaStream_t);
MOESAIC_INSTANTIATE(float)
MOESAIC_INSTANTIATE(double)
MOESAIC_INSTANTIATE(BFloat16)
MOESAIC_INSTANTIATE(Half)
#undef MOESAIC_INSTANTIATE

}  // namespace moesaic::ops::kernels
