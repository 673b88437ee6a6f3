// SPDX-License-Identifier: Apache-2.0
#include "../kernels/route_adaptive.h"
#include "../kernels/route_rule.h"
#include "start.cuh"

namespace moesaic::ops::kernels {

#define MOESAIC_INSTANTIATE(Scalar)                    \
  MOESAIC_START(256, CountRule<ThresholdRule<Scalar>>) \
  MOESAIC_START(256, PlaceRule<Scalar, ThresholdRule<Scalar>>)
MOESAIC_INSTANTIATE(float)
MOESAIC_INSTANTIATE(double)
#undef MOESAIC_INSTANTIATE

}  // namespace moesaic::ops::kernels
