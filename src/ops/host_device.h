// SPDX-License-Identifier: Apache-2.0
// Small functions that kernels for several devices share are written once and marked with this.
#pragma once

#ifdef __CUDACC__
#define MOESAIC_HD __host__ __device__
#define MOESAIC_HD_INLINE __host__ __device__ __forceinline__
#else
#define MOESAIC_HD
/// For what must become part of its caller, so that it is compiled for the caller's instruction
/// set.
#define MOESAIC_HD_INLINE inline __attribute__((always_inline))
#endif
