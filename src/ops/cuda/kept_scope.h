// SPDX-License-Identifier: Apache-2.0
// Holds the computed experts of a call on the device.
#pragma once

#include <ATen/ops/empty.h>

#include "../kernels/route_rows.h"
#include "tensor_data.h"

namespace moesaic::ops {

/// Returns the tokens of a segment, whose bits for all computed experts fit into shared memory.
inline int64_t segment_length(int64_t computed) {
  return computed <= 1024 ? 256 : 64;
}

/// Returns the number of threads of a block that scans `count` numbers.
inline int scan_threads(int64_t count) {
  int threads = kernels::kWarp;
  while (threads < count && threads < kernels::kScanThreads) threads *= 2;
  return threads;
}

class KeptScope {
 public:
  /// Copies the list of kept experts, of at most kernels::kMaxExperts in all, to the device.
  template <class Device>
  KeptScope(const at::Tensor& logits, at::IntArrayRef kept, const Device& device) {
    if (kept.empty()) return;
    const int64_t experts = logits.size(1);
    storage_ =
        at::empty({experts + static_cast<int64_t>(kept.size())}, logits.options().dtype(at::kInt));
    kernels::ExpandKept kernel{};
    for (const int64_t e : kept) kernel.bits[e / 32] |= uint32_t{1} << (e % 32);
    kernel.experts = static_cast<int32_t>(experts);
    kernel.slot_of = out<int32_t>(storage_);
    kernel.columns = kernel.slot_of + experts;
    device.template start<256>(kernel, 1, 256, 0);
    view_ = {kernel.slot_of, kernel.columns};
  }

  const kernels::KeptView& view() const { return view_; }

 private:
  at::Tensor storage_;
  kernels::KeptView view_{nullptr, nullptr};
};

}  // namespace moesaic::ops
