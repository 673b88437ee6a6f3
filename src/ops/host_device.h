// SPDX-License-Identifier: Apache-2.0
// Marks small functions that kernels for several devices share.
#pragma once

#ifdef __CUDACC__
#define MOESAIC_HD __host__ __device__
#define MOESAIC_HD_INLINE __host__ __device__ __forceinline__
#else
#define MOESAIC_HD
/// Marks functions that must be inlined, so that they are compiled for the caller's instruction
/// set.
#define MOESAIC_HD_INLINE inline __attribute__((always_inline))
#endif
