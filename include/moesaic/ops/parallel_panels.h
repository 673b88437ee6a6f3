// SPDX-License-Identifier: Apache-2.0
// Division of the experts' work among threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <variant>
#include <vector>

namespace moesaic::ops {

/// A panel: `columns` columns of a matrix of one expert, over which rows [begin, end) run.
struct Panel {
  int64_t expert, begin, end, column, columns;
  /// Returns the number of rows.
  int64_t rows() const { return end - begin; }
};

/// Cuts a matrix of `columns` columns of each expert that has rows into panels of at most `width`,
/// in the order of experts and columns. `offsets` has experts + 1 entries.
inline std::vector<Panel> panels_of(const int32_t* offsets, int64_t experts, int64_t columns,
                                    int64_t width) {
  std::vector<Panel> panels;
  for (int64_t e = 0; e < experts; ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    for (int64_t column = 0; column < columns; column += width) {
      panels.push_back({e, offsets[e], offsets[e + 1], column, std::min(width, columns - column)});
    }
  }
  return panels;
}

/// Calls use(panel, scratch) for all panels on all threads. Each thread has a `PerThread` and
/// `scratch_bytes` aligned to a cache line, and takes panels one after the other. A panel's result
/// does not depend on the thread that computes it.
template <class PerThread = std::monostate, class Use>
void for_panels(const std::vector<Panel>& panels, int64_t scratch_bytes, Use use) {
  const auto count = static_cast<int64_t>(panels.size());
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), count);
  if (threads == 0) return;
  const int64_t stride = (scratch_bytes + 63) / 64 * 64;
  const at::Tensor memory = at::empty({threads * stride}, at::kByte);
  auto* const scratch = memory.mutable_data_ptr<uint8_t>();
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, threads, 1, [&](int64_t thread, int64_t last) {
    [[maybe_unused]] const PerThread of_thread;
    for (; thread < last; ++thread) {
      for (int64_t i = next++; i < count; i = next++) use(panels[i], scratch + thread * stride);
    }
  });
}

/// Hands out pieces of a scratch memory, each aligned to a cache line.
class Scratch {
 public:
  /// Hands out memory from `memory` on, which is aligned to a cache line.
  explicit Scratch(uint8_t* memory) : memory_(memory) {}

  /// Returns memory for `count` numbers, not initialised.
  template <class Scalar>
  Scalar* take(int64_t count) {
    auto* const piece = reinterpret_cast<Scalar*>(memory_ + taken_);
    taken_ += (count * static_cast<int64_t>(sizeof(Scalar)) + 63) / 64 * 64;
    return piece;
  }
  /// Returns the bytes handed out so far, a multiple of 64.
  int64_t taken() const { return taken_; }

 private:
  uint8_t* memory_;
  int64_t taken_ = 0;
};

}  // namespace moesaic::ops
