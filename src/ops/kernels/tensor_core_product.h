// SPDX-License-Identifier: Apache-2.0
// Products of bfloat16 numbers on a Hopper GPU's tensor cores. A block stays on its multiprocessor
// and takes tile after tile: one warp has the TMA fill the stages of a ring, two groups of
// 128 threads multiply what is there, end the sums and store them. Everything but the chip's own
// instructions is here; those are in `Loader` and `Group`, on the GPU ops/cuda/hopper.cuh, in tests
// a model of the chip.
//
// Each sum is taken by one group in the order of its terms: results do not depend on who is first.
#pragma once

#include <cstdint>

#include "epilogue.h"
#include "row_tiles.h"
#include "tensor_core.h"

namespace moesaic::ops::kernels {

constexpr int kGroups = 2, kGroupThreads = 128;
constexpr int kTileRows = 128;
constexpr int kGroupSums = 2 * CoreSums::kCount;

/// How two groups share the work. In turns: each has a tile of 128 x 128 of its own and ends its
/// sums while the other multiplies, for ends that take long. Together: each has 64 rows of a tile
/// of 128 x 256, which reads less for every product.
enum class Sharing { in_turns, together };

template <Sharing How>
struct TileShare {
  static constexpr bool kInTurns = How == Sharing::in_turns;
  static constexpr int kColumns = kInTurns ? kCoreColumns : 2 * kCoreColumns;
  static constexpr int kStages = kInTurns ? 6 : 4;
  static constexpr int kReaders = kInTurns ? 1 : kGroups;  // groups that read a stage

  /// Where the sums of a group's instruction `part`, of two, begin in the tile.
  static MOESAIC_INLINE int row(int group, int part) {
    return (kInTurns ? part : group) * kCoreRows;
  }
  static MOESAIC_INLINE int column(int part) { return kInTurns ? 0 : part * kCoreColumns; }
};

/// What is summed up where.
struct ProductTile {
  int32_t expert;
  int32_t rows;                    // of sums, at most kTileRows
  int64_t out_row;                 // the first of them in the output
  int32_t a_first, b_first;        // along A's rows and B's columns
  int32_t depth_first, depth_end;  // the terms

  MOESAIC_INLINE int steps() const { return divide_up(depth_end - depth_first, kStageDepth); }
};

/// epilogue(sum over k of a[r, k] w_e[k, n]) for the rows r of every expert e. Transposed: w_e[n,
/// k].
template <class EpilogueOf, Sharing How, bool Transposed>
struct CoreRowsTimesWeights {
  using Share = TileShare<How>;
  using A = StageOperand<Near::depth, kTileRows>;
  using B = StageOperand<Transposed ? Near::depth : Near::extent, Share::kColumns>;
  static constexpr int kRankA = 2, kRankB = 3;
  static constexpr bool kRagged = false;  // past the depth all is 0

  const int32_t* offsets;
  int32_t experts;
  int64_t rows, depth, columns;
  EpilogueOf epilogue;

  BoxSource source_a(const BFloat16* a) const { return box_source<A>(a, 0, rows, depth); }
  BoxSource source_b(const BFloat16* w) const {
    return Transposed ? box_source<B>(w, experts, columns, depth)
                      : box_source<B>(w, experts, depth, columns);
  }

  MOESAIC_INLINE int64_t across() const { return divide_up<int64_t>(columns, Share::kColumns); }
  MOESAIC_INLINE int64_t tiles() const {
    return across() * row_tile_bound(rows, experts, kTileRows);
  }
  MOESAIC_INLINE ProductTile tile(const int32_t* offsets_at, int64_t number) const {
    const RowTile found = row_tile(offsets_at, experts, kTileRows, number / across());
    return {found.expert,
            found.end - found.begin,
            found.begin,
            found.begin,
            static_cast<int32_t>(number % across() * Share::kColumns),
            0,
            found.empty() ? 0 : static_cast<int32_t>(depth)};
  }
};

/// out_e[i, j] = sum over the rows r of expert e of left[r, i] right[r, j]; 0 for an expert without
/// rows.
template <Sharing How>
struct CoreRowsTimesRows {
  using Share = TileShare<How>;
  using A = StageOperand<Near::extent, kTileRows>;
  using B = StageOperand<Near::extent, Share::kColumns>;
  static constexpr int kRankA = 2, kRankB = 2;
  static constexpr bool kRagged = true;  // the next expert's rows follow

  const int32_t* offsets;
  int32_t experts;
  int64_t rows, p, columns;
  Plain<BFloat16> epilogue;  // out: [experts * p, columns]

  BoxSource source_a(const BFloat16* left) const { return box_source<A>(left, 0, rows, p); }
  BoxSource source_b(const BFloat16* right) const { return box_source<B>(right, 0, rows, columns); }

  MOESAIC_INLINE int64_t across() const { return divide_up<int64_t>(columns, Share::kColumns); }
  MOESAIC_INLINE int64_t down() const { return divide_up<int64_t>(p, kTileRows); }
  MOESAIC_INLINE int64_t tiles() const { return experts * down() * across(); }
  MOESAIC_INLINE ProductTile tile(const int32_t* offsets_at, int64_t number) const {
    const int64_t expert = number / (across() * down());
    const int64_t first = number / across() % down() * kTileRows;
    return {static_cast<int32_t>(expert),
            static_cast<int32_t>(min<int64_t>(kTileRows, p - first)),
            expert * p + first,
            static_cast<int32_t>(first),
            static_cast<int32_t>(number % across() * Share::kColumns),
            offsets_at[expert],
            offsets_at[expert + 1]};
  }
};

template <class Product>
constexpr int kStageBytes = Product::A::kBytes + Product::B::kBytes;

template <class Operand, int Which, int Rank, class Loader>
MOESAIC_INLINE void load_operand(Loader& loader, int stage, int at, int32_t extent, int32_t depth,
                                 int32_t expert) {
  MOESAIC_UNROLL
  for (int box = 0; box < Operand::kBoxes; ++box) {
    const int32_t near = Operand::kByExtent ? extent + box * kLineNumbers : depth;
    const int32_t far = Operand::kByExtent ? depth : extent;
    loader.template load<Which, Rank>(stage, at + box * Operand::kBoxBytes, near, far, expert);
  }
}

/// The work of the warp that loads.
template <class Product, class Loader>
MOESAIC_INLINE void load_tiles(const Product& product, Loader& loader) {
  using A = typename Product::A;
  using B = typename Product::B;
  StageRing<Product::Share::kStages> ring;
  MOESAIC_NO_UNROLL
  for (int64_t number = loader.block(); number < product.tiles(); number += loader.blocks()) {
    const ProductTile tile = product.tile(loader.offsets(), number);
    const int steps = tile.steps();
    MOESAIC_NO_UNROLL
    for (int step = 0; step < steps; ++step) {
      const int stage = ring.stage();
      const int32_t depth = tile.depth_first + step * kStageDepth;
      loader.await_free(stage, ring.parity() ^ 1u);
      loader.expect(stage, kStageBytes<Product>);
      load_operand<A, 0, Product::kRankA>(loader, stage, 0, tile.a_first, depth, tile.expert);
      load_operand<B, 1, Product::kRankB>(loader, stage, A::kBytes, tile.b_first, depth,
                                          tile.expert);
      ring.advance(1);
    }
  }
}

/// Zeros where a stage holds rows of the next expert, or of none, so that NaN there does not count.
template <class Product, class Group>
MOESAIC_INLINE void clear_past_end(Group& group, int stage, int valid) {
  constexpr int kThreads = Product::Share::kReaders * kGroupThreads;
  constexpr int kBoxes = Product::A::kBoxes + Product::B::kBoxes;
  constexpr int kPieces = kLineBytes / 16;
  static_assert(Product::A::kBoxBytes == Product::B::kBoxBytes, "boxes are alike");
  group.each([&](int thread) {
    const int own = Product::Share::kReaders == 1 ? thread : group.index() * kGroupThreads + thread;
    const int count = (kStageDepth - valid) * kPieces;
    MOESAIC_NO_UNROLL
    for (int i = own; i < kBoxes * count; i += kThreads) {
      group.clear_piece(stage,
                        i / count * Product::A::kBoxBytes + valid * kLineBytes + i % count * 16);
    }
  });
  group.show_to_cores();
}

template <class Product, class Group, class Sums>
MOESAIC_INLINE void multiply_stage(Group& group, int stage, Sums& sums) {
  using A = typename Product::A;
  using B = typename Product::B;
  using Share = typename Product::Share;
  const uint32_t a = group.stage_address(stage), b = a + A::kBytes;
  group.begin_products(sums);
  MOESAIC_UNROLL
  for (int step = 0; step < kStageDepth / kCoreDepth; ++step) {
    MOESAIC_UNROLL
    for (int part = 0; part < 2; ++part) {
      group.template multiply<A::kByExtent, B::kByExtent>(
          sums, part, A::descriptor(a, Share::row(group.index(), part), step),
          B::descriptor(b, Share::column(part), step));
    }
  }
  group.end_products();
}

/// Hands each thread eight neighbours of a row instead of four times two: lanes of a four swap what
/// they hold of 32 columns, whose sums begin at `first`.
template <class Group, class Sums>
MOESAIC_INLINE void gather_eights(Group& group, Sums& sums, int first) {
  MOESAIC_UNROLL
  for (int mask = 1; mask <= 2; mask *= 2) {
    MOESAIC_UNROLL
    for (int j = 0; j < 4; ++j) {
      if ((j & mask) != 0) continue;
      MOESAIC_UNROLL
      for (int i = 0; i < 4; ++i) {
        group.swap(sums, mask, first + j * 4 + i, first + (j | mask) * 4 + i);
      }
    }
  }
}

/// Ends a tile's sums. Registers have no running index: each round takes the first sums and moves
/// the others down.
template <class Product, class Group, class Sums>
MOESAIC_INLINE void finish_tile(const Product& product, Group& group, Sums& sums,
                                const ProductTile& tile) {
  constexpr int kPiece = 16;  // sums of a thread in 32 columns: eight of each of two rows
  constexpr int kPieces = 2;
  constexpr int kPiecesOfPart = CoreSums::kCount / kPiece;
  MOESAIC_NO_UNROLL
  for (int round = 0; round < kGroupSums / kPiece / kPieces; ++round) {
    MOESAIC_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) gather_eights(group, sums, piece * kPiece);
    group.each([&](int thread) {
      auto& own = sums[thread].at;
      MOESAIC_UNROLL
      for (int piece = 0; piece < kPieces; ++piece) {
        const int place = round * kPieces + piece, part = place / kPiecesOfPart;
        const int64_t column = tile.b_first + Product::Share::column(part) +
                               place % kPiecesOfPart * 32 + thread % 4 * 8;
        MOESAIC_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int row =
              Product::Share::row(group.index(), part) + CoreSums::row(thread, 2 * half);
          float eight[8];
          MOESAIC_UNROLL
          for (int c = 0; c < 8; ++c) {
            eight[c] = own[piece * kPiece + c / 2 * 4 + half * 2 + c % 2];
          }
          if (row < tile.rows && column < product.columns) {
            product.epilogue.template apply<8>(tile.expert, tile.out_row + row, column, eight);
          }
        }
      }
      MOESAIC_UNROLL
      for (int i = 0; i + kPieces * kPiece < kGroupSums; ++i) own[i] = own[i + kPieces * kPiece];
    });
  }
}

/// The work of a group that multiplies.
template <class Product, class Group>
MOESAIC_INLINE void multiply_tiles(const Product& product, Group& group) {
  StageRing<Product::Share::kStages> ring;
  int turn = 0;
  MOESAIC_NO_UNROLL
  for (int64_t number = group.block(); number < product.tiles(); number += group.blocks()) {
    const ProductTile tile = product.tile(group.offsets(), number);
    const int steps = tile.steps();
    if (tile.rows <= 0) continue;
    if (Product::Share::kInTurns && turn++ % kGroups != group.index()) {
      ring.advance(steps);
      continue;
    }
    typename Group::Sums sums(group);
    int before = -1;
    MOESAIC_NO_UNROLL
    for (int step = 0; step < steps; ++step) {
      const int stage = ring.stage();
      group.await_filled(stage, ring.parity());
      if constexpr (Product::kRagged) {
        const int valid = tile.depth_end - tile.depth_first - step * kStageDepth;
        if (valid < kStageDepth) clear_past_end<Product>(group, stage, valid);
      }
      multiply_stage<Product>(group, stage, sums);
      // The products of this stage may run on; those of the one before are done.
      group.template await_products<1>(sums);
      if (before >= 0) group.release(before);
      before = stage;
      ring.advance(1);
    }
    group.template await_products<0>(sums);
    if (before >= 0) group.release(before);
    finish_tile(product, group, sums, tile);
  }
}

}  // namespace moesaic::ops::kernels
