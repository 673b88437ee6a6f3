// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace moesaic {

/// Returns the number of bytes of freed outputs and gradients of at least 2 MB that the CPU
/// operators cache for their next call.
size_t cached_memory();
/// Frees these cached bytes.
void free_cached_memory();

}  // namespace moesaic
