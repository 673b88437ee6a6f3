// SPDX-License-Identifier: Apache-2.0
#include "../kernels/route_expert_choice.h"
#include "../kernels/route_rule.h"
#include "start.cuh"

namespace moesaic::ops::kernels {

#define MOESAIC_INSTANTIATE(Scalar)                               \
  MOESAIC_START(256, WriteScores<Scalar>)                         \
  MOESAIC_START(kSelectThreads, SelectBorders<ExpertQueues<Scalar>>) \
  MOESAIC_START(kSelectThreads, SelectDigit<ExpertQueues<Scalar>>) \
  MOESAIC_START(kSelectThreads, FindTops<Scalar>) \
  MOESAIC_START(kSelectThreads, SumTerms<Scalar>) \
  MOESAIC_START(256, AddUpSoftmax<Scalar>) \
  MOESAIC_START(256, CountRule<ExpertChoiceRule<Scalar>>)         \
  MOESAIC_START(256, PlaceRule<Scalar, ExpertChoiceRule<Scalar>>)
MOESAIC_INSTANTIATE(float)
MOESAIC_INSTANTIATE(double)
#undef MOESAIC_INSTANTIATE

}  // namespace moesaic::ops::kernels
