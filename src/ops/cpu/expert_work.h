// SPDX-License-Identifier: Apache-2.0
// Division of the rows of all experts among threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace moesaic::ops {

/// Rows [begin, end) of one expert.
struct Segment {
  int64_t expert, begin, end;
  int64_t rows() const { return end - begin; }
};

/// Number of rows of an expert that share a packed panel.
constexpr int64_t kBlockRows = 320;

/// Cuts the rows of all experts, in order, into `parts` pieces of equal work; packing an expert's
/// weights counts as `overhead` rows. Rows are independent, so results do not depend on the cut.
/// `offsets` has experts + 1 entries.
std::vector<std::vector<Segment>> split_rows(const int32_t* offsets, int64_t experts, int64_t parts,
                                             int64_t overhead);

/// Returns the rows of a block, at least 8: fewer the more threads share `budget` bytes of scratch,
/// of which a block takes scratch(rows) scalars.
template <class Scalar, class Scratch>
int64_t rows_within(int64_t budget, int64_t rows, const Scratch& scratch) {
  int64_t block = std::min(kBlockRows, rows);
  const auto bytes = [&] {
    return at::get_num_threads() * scratch(block) * static_cast<int64_t>(sizeof(Scalar));
  };
  while (block > 8 && bytes() > budget) block = (block + 1) / 2;
  return block;
}

/// Calls block(part of a segment, scratch) for blocks of at most `block_rows` rows, on all threads;
/// each thread has `scratch` scalars, aligned to a cache line.
template <class Scalar, class Block>
void for_blocks(const int32_t* offsets, int64_t experts, int64_t scratch, Block block,
                int64_t block_rows = kBlockRows) {
  constexpr int64_t kPackingWork = 12;  // Cost in rows, measured at d 192 and d 768.
  const int64_t parts = at::get_num_threads();
  const auto pieces = split_rows(offsets, experts, parts, kPackingWork);
  const int64_t bytes = (scratch * static_cast<int64_t>(sizeof(Scalar)) + 63) / 64 * 64;
  const at::Tensor memory = at::empty({parts * bytes}, at::kByte);
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      auto* own = reinterpret_cast<Scalar*>(memory.mutable_data_ptr<uint8_t>() + part * bytes);
      for (const Segment& s : pieces[part]) {
        const int64_t blocks = (s.rows() + block_rows - 1) / block_rows;
        for (int64_t i = 0; i < blocks; ++i) {
          block(Segment{s.expert, s.begin + s.rows() * i / blocks,
                        s.begin + s.rows() * (i + 1) / blocks},
                own);
        }
      }
    }
  });
}

}  // namespace moesaic::ops
