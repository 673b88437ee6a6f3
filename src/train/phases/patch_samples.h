// SPDX-License-Identifier: Apache-2.0
// The training samples of a phase of a patch-level mixture.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "moesaic/config/sides.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Samples in memory, cut into patches.
struct PatchSamples {
  at::Tensor x_Nnd;    ///< float32, normalised.
  at::Tensor label_N;  ///< int64
};

/// Returns the numbers in `data` of a run's `count` training samples, the first being the same for
/// any count: of an endless dataset they begin where the run's seed says.
int64_t first_patch_sample(const Dataset& data, uint64_t run_seed);

PatchSamples read_patch_samples(const Dataset& data, int64_t first, int64_t count,
                                const Sides& patch);

struct StepRange {
  int64_t first, count;
};

/// Returns the numbers of the samples of each of these steps: every epoch has an order of its own,
/// and a last batch that may be smaller.
std::vector<std::vector<int64_t>> patch_batches(int64_t samples, int64_t batch, StepRange steps,
                                                uint64_t seed);

}  // namespace moesaic
