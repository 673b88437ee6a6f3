// SPDX-License-Identifier: Apache-2.0
// The training samples of a run that sees only some of its data.
#pragma once

#include <cstdint>
#include <memory>

#include "moesaic/base/random.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Returns the first sample of an endless stream that a seed takes, so that runs of different seeds
/// see different samples.
inline int64_t stream_begin(uint64_t seed) {
  constexpr int kFreeBits = 23;  // Below 2^41: samples are left for any number of steps.
  return static_cast<int64_t>(mix64(seed) >> kFreeBits);
}

/// Makes a dataset of `count` examples of `base`: of endless data consecutive ones from
/// stream_begin(seed) on, else of each class in turn, while it has any, the next in a random order.
/// A seed's smaller samples are the beginning of its larger ones. Shares the memory of `base`.
/// Throws Error (failure) where there are fewer, and for finite data without classes.
std::shared_ptr<const Dataset> make_sample(std::shared_ptr<const Dataset> base, int64_t count,
                                           uint64_t seed);

}  // namespace moesaic
