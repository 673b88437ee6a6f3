// SPDX-License-Identifier: Apache-2.0
// Small functions that kernels for several devices share are written once and marked with this.
#pragma once

#ifdef __CUDACC__
#define MOESAIC_HD __host__ __device__
#else
#define MOESAIC_HD
#endif
