// SPDX-License-Identifier: Apache-2.0
// Marks a function of which one clone for each instruction set is built; the loader picks one. Only
// for arithmetic whose result does not depend on the instruction set (see ops/route_math.h), or
// depends on it in rounding only and chooses nothing.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOESAIC_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MOESAIC_VECTOR_CLONES
#endif
/// What a clone calls has to become part of it.
#define MOESAIC_IN_CLONE inline __attribute__((always_inline))
