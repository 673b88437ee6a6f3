// SPDX-License-Identifier: Apache-2.0
// Division of the experts' products among threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "product.h"

namespace moesaic::ops {

/// A panel: `columns` columns of a matrix of one expert, over which rows [begin, end) run.
struct Panel {
  int64_t expert, begin, end, column, columns;
  int64_t rows() const { return end - begin; }
};

/// Cuts a matrix of `columns` columns of each expert that has rows into panels of at most `width`,
/// in the order of experts and columns. `offsets` has experts + 1 entries.
std::vector<Panel> panels_of(const int32_t* offsets, int64_t experts, int64_t columns,
                             int64_t width);

/// Returns where the panels of each part begin and the last one's end, [parts + 1], for parts of
/// about equal work; packing a panel counts as some rows.
std::vector<int64_t> share_panels(const std::vector<Panel>& panels, int64_t parts);

/// Calls use(panel, scratch) for all panels on all threads, each of which has `scratch_bytes`
/// aligned to a cache line. What a panel gives does not depend on the thread that computes it.
template <class Use>
void for_panels(const std::vector<Panel>& panels, int64_t scratch_bytes, Use use) {
  const int64_t parts =
      std::min<int64_t>(at::get_num_threads(), static_cast<int64_t>(panels.size()));
  if (parts == 0) return;
  const std::vector<int64_t> begins = share_panels(panels, parts);
  const int64_t stride = (scratch_bytes + 63) / 64 * 64;
  const at::Tensor memory = at::empty({parts * stride}, at::kByte);
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      uint8_t* const scratch = memory.mutable_data_ptr<uint8_t>() + part * stride;
      for (int64_t i = begins[part]; i < begins[part + 1]; ++i) use(panels[i], scratch);
    }
    end_products();
  });
}

/// Hands out pieces of a scratch memory, each aligned to a cache line.
class Scratch {
 public:
  explicit Scratch(uint8_t* memory) : memory_(memory) {}

  template <class Scalar>
  Scalar* take(int64_t count) {
    auto* const piece = reinterpret_cast<Scalar*>(memory_ + taken_);
    taken_ += (count * static_cast<int64_t>(sizeof(Scalar)) + 63) / 64 * 64;
    return piece;
  }
  int64_t taken() const { return taken_; }

 private:
  uint8_t* memory_;
  int64_t taken_ = 0;
};

}  // namespace moesaic::ops
