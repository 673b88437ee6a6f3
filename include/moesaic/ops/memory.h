// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace moesaic {

/// Bytes of freed outputs and gradients, those of 2 MB or more, that the operators keep on a CPU
/// for their next call.
size_t cached_memory();
/// Gives them back.
void free_cached_memory();

}  // namespace moesaic
