// SPDX-License-Identifier: Apache-2.0
// What exports for and by Python ask of a run.
#pragma once

#include "moesaic/checkpoint/store.h"

namespace moesaic {

/// Returns the last line of an evaluation of this checkpoint's step in the metrics.jsonl of its
/// run, null where there is none.
Json last_evaluation(const Checkpoint& checkpoint);

}  // namespace moesaic
