// SPDX-License-Identifier: Apache-2.0
// Starts the selection of kernels/select.h.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "../kernels/select.h"
#include "kept_scope.h"
#include "tensor_data.h"

namespace moesaic::ops {

/// Returns how many blocks share a queue of `size` entries: one where there are queues enough to
/// fill a GPU, else one for some thousand entries, so many that their sums are few.
inline int64_t queue_parts(int64_t queues, int64_t size) {
  constexpr int64_t kEntries = 2048, kMaxParts = 64, kManyQueues = 1024;
  if (queues >= kManyQueues) return 1;
  return std::clamp<int64_t>(size / kEntries, 1, kMaxParts);
}

/// Returns the number of threads of a block that searches a queue of `size` entries with others.
inline int queue_threads(int64_t size, int64_t parts) {
  return parts > 1 ? kernels::kDigits : std::max(scan_threads(size), kernels::kDigits);
}

/// Returns the borders of all queues, Border[queues]. The queues have at most `size` entries, their
/// positions as many digits as the first.
template <class Queues, class Device>
at::Tensor select_borders(const Queues& queues, int64_t size, const at::Tensor& like,
                          const Device& device) {
  using kernels::Border;
  const int64_t count = queues.count();
  const auto bytes = [&](int64_t number, size_t each) {
    return at::empty({number * static_cast<int64_t>(each)}, like.options().dtype(at::kByte));
  };
  const at::Tensor borders = bytes(count, sizeof(Border));
  const int64_t parts = queue_parts(count, size);
  const int threads = queue_threads(size, parts);
  const auto start = [&](const auto& kernel) {
    device.template start<kernels::kSelectThreads>(kernel, count * parts, threads,
                                                   kernels::select_bytes(threads));
  };
  if (parts == 1) {
    start(kernels::SelectBorders<Queues>{queues, out<Border>(borders)});
    return borders;
  }
  const int digits = queues.digits(size).count();
  const at::Tensor histograms =
      at::zeros({digits * count * kernels::kDigits}, like.options().dtype(at::kInt));
  const at::Tensor states = bytes((digits + 1) * count, sizeof(kernels::SelectState));
  for (int digit = 0; digit <= digits; ++digit) {
    start(kernels::SelectDigit<Queues>{queues, digit, parts, out<int32_t>(histograms),
                                       out<kernels::SelectState>(states), out<Border>(borders)});
  }
  return borders;
}

}  // namespace moesaic::ops
