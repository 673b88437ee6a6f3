// SPDX-License-Identifier: Apache-2.0
// Instantiates the kernels of the routings.
#include "../kernels/route_expert_choice.h"
#include "../kernels/route_rows.h"
#include "../kernels/route_token_choice.h"
#include "start.h"

namespace moesaic::ops::kernels {

#define MOESAIC_INSTANTIATE(Scalar)                                  \
  MOESAIC_START(256, ChooseBestExperts<Scalar, 1>)                   \
  MOESAIC_START(256, ChooseBestExperts<Scalar, 2>)                   \
  MOESAIC_START(256, ChooseBestExperts<Scalar, 4>)                   \
  MOESAIC_START(256, ChooseBestExperts<Scalar, kMostChoices>)        \
  MOESAIC_START(256, PlaceChoices<Scalar>)                           \
  MOESAIC_START(256, WriteScores<Scalar>)                            \
  MOESAIC_START(kSelectThreads, SelectBorders<ExpertQueues<Scalar>>) \
  MOESAIC_START(kSelectThreads, SelectDigit<ExpertQueues<Scalar>>)   \
  MOESAIC_START(kSelectThreads, FindTops<Scalar>)                    \
  MOESAIC_START(kSelectThreads, SumTerms<Scalar>)                    \
  MOESAIC_START(256, CountRule<Scalar>)                              \
  MOESAIC_START(256, PlaceRule<Scalar>)
MOESAIC_INSTANTIATE(float)
MOESAIC_INSTANTIATE(double)
#undef MOESAIC_INSTANTIATE

MOESAIC_START(256, ExpandKept)
MOESAIC_START(kScanThreads, ScanRows)
MOESAIC_START(kScanThreads, ScanQueues)

}  // namespace moesaic::ops::kernels
