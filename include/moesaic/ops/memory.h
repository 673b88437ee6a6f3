// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesaic {

/// Gives back the memory that training on a CPU keeps for the next step's gradients.
void free_cached_memory();

}  // namespace moesaic
