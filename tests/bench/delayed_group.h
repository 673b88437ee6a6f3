// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace moesaic::bench {

/// Returns a process group of two whose sums take time and change nothing: each ends `delay` after
/// the one before it, or after it was begun, as on a link that passes one at a time.
c10::intrusive_ptr<c10d::ProcessGroup> make_delayed_group(std::chrono::duration<double> delay);

}  // namespace moesaic::bench
