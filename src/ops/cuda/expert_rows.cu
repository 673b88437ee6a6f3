// SPDX-License-Identifier: Apache-2.0
// Instantiates the kernels that move rows, and the passes over rows of experts.
#include "../kernels/expert_rows.h"
#include "../kernels/move_rows.h"
#include "start.cuh"

namespace moesaic::ops::kernels {

#define MOESAIC_FOR_ACTIVATION(T, count, act)                      \
  MOESAIC_START(kPassThreads, ActivateRows<T, count, Act::act>)    \
  MOESAIC_START(kPassThreads, DifferentiateRows<T, count, Act::act>)
#define MOESAIC_FOR_COUNT(T, count)               \
  MOESAIC_FOR_ACTIVATION(T, count, relu)          \
  MOESAIC_FOR_ACTIVATION(T, count, gelu_tanh)     \
  MOESAIC_FOR_ACTIVATION(T, count, gelu)          \
  MOESAIC_FOR_ACTIVATION(T, count, cubic)         \
  MOESAIC_FOR_ACTIVATION(T, count, identity)      \
  MOESAIC_FOR_ACTIVATION(T, count, celu)          \
  MOESAIC_FOR_ACTIVATION(T, count, tanh)          \
  MOESAIC_START(kPassThreads, SumTiles<T, count>) \
  MOESAIC_START(kPassThreads, ClearRows<T, count>) \
  MOESAIC_START(kMoveThreads, DispatchRows<T, count>) \
  MOESAIC_START(kMoveThreads, SumRows<T, count>) \
  MOESAIC_START(kMoveThreads, CombineBackward<T, count>)
#define MOESAIC_FOR_TYPE(T)                   \
  MOESAIC_FOR_COUNT(T, 1)                     \
  MOESAIC_FOR_COUNT(T, kWide<T>)              \
  MOESAIC_START(kPassThreads, SumPartials<T>) \
  MOESAIC_START(kPassThreads, ClearIdleExperts<T>)
MOESAIC_FOR_TYPE(float)
MOESAIC_FOR_TYPE(double)
MOESAIC_FOR_TYPE(BFloat16)
MOESAIC_FOR_TYPE(Half)
#undef MOESAIC_FOR_TYPE
#undef MOESAIC_FOR_COUNT
#undef MOESAIC_FOR_ACTIVATION

}  // namespace moesaic::ops::kernels
