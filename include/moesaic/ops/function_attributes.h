// SPDX-License-Identifier: Apache-2.0
// Marks functions that are compiled for several instruction sets or devices.
#pragma once

/// A function that is built as one clone per instruction set; the loader picks one. Only for
/// arithmetic whose result does not depend on the instruction set (see ops/softmax_exp.h), or
/// depends on it in rounding only without affecting decisions.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOESAIC_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MOESAIC_VECTOR_CLONES
#endif
/// Functions that a clone calls must be inlined into it.
#define MOESAIC_IN_CLONE inline __attribute__((always_inline))

/// Small functions that kernels for several devices share.
#ifdef __CUDACC__
#define MOESAIC_HD __host__ __device__
#define MOESAIC_HD_INLINE __host__ __device__ __forceinline__
#else
#define MOESAIC_HD
#define MOESAIC_HD_INLINE MOESAIC_IN_CLONE
#endif
