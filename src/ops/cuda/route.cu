// SPDX-License-Identifier: Apache-2.0
// Instantiates the kernels of the routings.
#include "../kernels/route_token_choice.h"
#include "../kernels/select.h"
#include "start.h"

namespace moesaic::ops::kernels {

#define MOESAIC_INSTANTIATE(Scalar)                           \
  MOESAIC_START(256, ChooseBestExperts<Scalar, 1>)            \
  MOESAIC_START(256, ChooseBestExperts<Scalar, 2>)            \
  MOESAIC_START(256, ChooseBestExperts<Scalar, 4>)            \
  MOESAIC_START(256, ChooseBestExperts<Scalar, kMostChoices>) \
  MOESAIC_START(256, PlaceChoices<Scalar>)                    \
  MOESAIC_START(256, GateGradient<Scalar>)                    \
  MOESAIC_START(kDigits, SelectLargest<Scalar>)
MOESAIC_INSTANTIATE(float)
MOESAIC_INSTANTIATE(double)
#undef MOESAIC_INSTANTIATE

MOESAIC_START(kScanThreads, ScanQueues)

}  // namespace moesaic::ops::kernels
