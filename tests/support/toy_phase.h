// SPDX-License-Identifier: Apache-2.0
// A kind of phase that the library does not know.
#pragma once

#include <cstdint>

#include "moesaic/config/schema.h"

namespace moesaic::testing {

struct ShrinkConfig {
  double rate = 0.1;
  int64_t chunk_size = 4;
};
template <class Fields>
void describe(Fields& f, ShrinkConfig& c) {
  f("rate", c.rate, "fraction of every number that a step takes away", between(0.0, 1.0));
  f("chunk_size", c.chunk_size, "steps that are made at once", at_least(1));
}

/// Registers it as "shrink", once: every step takes a fraction away from the trained parameters, a
/// block of steps at a time, without gradients.
void add_shrink_phase();

}  // namespace moesaic::testing
