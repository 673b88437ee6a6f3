// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace moesaic {

/// Inputs [T, P, d], most of whose patches are multiples of a few directions, as those of the
/// clusters paper are (definition 3.1): patch (t, p) is scale[t, p] directions[which[t, p]], or,
/// where which[t, p] < 0, row -1 - which[t, p] of rest. D directions, R patches that are none.
struct ParallelPatches {
  at::Tensor directions;  ///< [D, d], of norm 1
  at::Tensor which;       ///< [T, P] int32
  at::Tensor scale;       ///< [T, P]; 0 where which < 0
  at::Tensor rest;        ///< [R, d]
};

/// x_TPd [T, P, d] float32 or float64 on the CPU, read as multiples of at most 64 directions, each
/// of which many patches share; nullopt where fewer than half of the patches are such. Patches
/// agree with what is found up to some units in the last place of their largest number.
std::optional<ParallelPatches> find_parallel_patches(const at::Tensor& x_TPd);

}  // namespace moesaic
