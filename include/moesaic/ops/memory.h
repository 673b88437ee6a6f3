// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic {

/// Returns the number of bytes of freed outputs and gradients of at least 2 MB that the CPU
/// operators cache for their next call.
size_t cached_memory();
/// Lets this process cache the part of one of so many on its machine: a quarter of the memory by
/// their number.
void share_cached_memory(int64_t processes);
/// Frees these cached bytes.
void free_cached_memory();

}  // namespace moesaic
