// SPDX-License-Identifier: Apache-2.0
// How a Hopper GPU's tensor cores find bfloat16 operands in shared memory and where they leave
// float32 sums: what the PTX manual says of wgmma, as far as a host can compute and check it.
//
// Operands lie in lines of 64 numbers, 128 bytes, as the tensor memory accelerator (TMA) lays them
// out with a swizzle of 128 bytes; its pattern repeats after 8 lines. TMA and tensor cores both
// apply it to addresses, so that nothing here does.
#pragma once

#include <cstdint>

#include "block.h"

namespace moesaic::ops::kernels {

constexpr int kLineNumbers = 64, kLineBytes = 128, kPatternBytes = 8 * kLineBytes;
/// What one instruction multiplies: 64 rows by 128 columns over a depth of 16.
constexpr int kCoreRows = 64, kCoreColumns = 128, kCoreDepth = 16;
/// How many terms of the sums a stage of the pipeline holds.
constexpr int kStageDepth = 64;

/// The 64 bits that name an operand: its address and two distances, each without its last four
/// bits, and the swizzle of 128 bytes in the last two bits.
MOESAIC_INLINE uint64_t operand_descriptor(uint32_t address, uint32_t leading_bytes,
                                           uint32_t stride_bytes) {
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3FFFFu) >> 4); };
  return field(address) | field(leading_bytes) << 16 | field(stride_bytes) << 32 |
         uint64_t{1} << 62;
}

/// Which index of an operand walks through neighbours in memory.
enum class Near { depth, extent };

/// kStageDepth terms of `Extent` rows of A, or columns of B, as they lie in a stage. `Near::depth`:
/// a line for each of them. `Near::extent`: blocks of 64 of them, each with a line for each term.
template <Near Neighbours, int Extent>
struct StageOperand {
  static constexpr bool kByExtent = Neighbours == Near::extent;
  static constexpr int kExtent = Extent;
  static constexpr int kBoxes = kByExtent ? Extent / kLineNumbers : 1;
  static constexpr int kBoxLines = kByExtent ? kStageDepth : Extent;
  static constexpr int kBoxBytes = kBoxLines * kLineBytes;
  static constexpr int kBytes = kBoxes * kBoxBytes;
  static_assert(Extent % kLineNumbers == 0 && kBoxLines <= 256, "what a box of a copy may be");

  /// What the instruction reads from `first` on, a multiple of 64, for terms [step, step + 1) * 16.
  static MOESAIC_INLINE uint64_t descriptor(uint32_t address, int first, int step) {
    if constexpr (kByExtent) {
      const int at = first / kLineNumbers * kBoxBytes + step * kCoreDepth * kLineBytes;
      return operand_descriptor(address + static_cast<uint32_t>(at), kBoxBytes, kPatternBytes);
    } else {
      const int at = first * kLineBytes + step * kCoreDepth * 2;
      return operand_descriptor(address + static_cast<uint32_t>(at), 16, kPatternBytes);
    }
  }
};

/// A matrix, or one for each expert, of which the TMA fetches boxes; what lies outside is
/// 0.
struct BoxSource {
  const void* data;
  int rank;                  // 2 or 3
  uint64_t size[3];          // in numbers, neighbours first
  uint64_t stride_bytes[2];  // between lines, between matrices
  uint32_t box[3];
};

/// Matrices [experts, lines, width], or one if `experts` is 0, for an operand.
template <class Operand>
BoxSource box_source(const void* data, int64_t experts, int64_t lines, int64_t width) {
  const auto pitch = static_cast<uint64_t>(width) * 2;
  return {data,
          experts > 0 ? 3 : 2,
          {static_cast<uint64_t>(width), static_cast<uint64_t>(lines),
           static_cast<uint64_t>(max<int64_t>(experts, 1))},
          {pitch, pitch * static_cast<uint64_t>(lines)},
          {kLineNumbers, Operand::kBoxLines, 1}};
}

/// The sums of one thread of the 128 that multiply 64 rows by 128 columns.
struct CoreSums {
  static constexpr int kCount = kCoreRows * kCoreColumns / 128;

  static MOESAIC_INLINE int row(int thread, int index) {
    return thread / kWarp * 16 + thread % kWarp / 4 + index / 2 % 2 * 8;
  }
  static MOESAIC_INLINE int column(int thread, int index) {
    return index / 4 * 8 + thread % 4 * 2 + index % 2;
  }
};

/// Where the pipeline is: the stage in turn, and the parity of how often all were used before.
template <int Stages>
struct StageRing {
  uint32_t count = 0;

  MOESAIC_INLINE int stage() const { return static_cast<int>(count % Stages); }
  MOESAIC_INLINE uint32_t parity() const { return count / Stages & 1u; }
  MOESAIC_INLINE void advance(int steps) { count += static_cast<uint32_t>(steps); }
};

}  // namespace moesaic::ops::kernels
