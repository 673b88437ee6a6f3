// SPDX-License-Identifier: Apache-2.0
// Instantiates the kernels that every routing starts.
#include "../kernels/kept_experts.h"
#include "../kernels/route_rows.h"
#include "start.cuh"

namespace moesaic::ops::kernels {

MOESAIC_START(256, ExpandKept)
MOESAIC_START(kScanThreads, ScanRows)

}  // namespace moesaic::ops::kernels
