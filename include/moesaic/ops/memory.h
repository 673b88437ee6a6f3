// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace moesaic {

/// The bytes of freed outputs and gradients, those of 2 MB or more, that the operators keep on a
/// CPU for their next call.
size_t cached_memory();
/// Returns these bytes to the system.
void free_cached_memory();

}  // namespace moesaic
