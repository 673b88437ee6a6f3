// SPDX-License-Identifier: Apache-2.0
// How an array of a V-MoE checkpoint is cut into chunks, and where their elements lie in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moesaic/formats/vmoe_checkpoint.h"

namespace moesaic::vmoe_checkpoint {

using Shape = std::vector<int64_t>;
/// A chunk's place: start and stop of every axis in turn.
using Box = std::span<const int64_t>;

inline constexpr uint64_t kNowhere = UINT64_MAX;

/// The chunks of one array; in flat vectors, since an index may list many.
struct Layout {
  std::size_t rank = 0;
  std::vector<int64_t> bounds;    // the boxes, one after the other
  std::vector<uint32_t> shards;   // of every chunk
  std::vector<uint64_t> offsets;  // of every chunk in its shard; kNowhere until it was found

  std::size_t size() const { return shards.size(); }
  Box box(std::size_t chunk) const { return Box(bounds).subspan(2 * rank * chunk, 2 * rank); }
  void add(Box box, uint32_t shard);
  /// Orders the chunks by their boxes, which find() needs.
  void sort();
  /// The chunk of that very place.
  std::optional<std::size_t> find(Box box) const;
};

std::optional<std::size_t> find_dtype_size(std::string_view dtype);

/// Elements of an array; nothing when that overflows 2^63. Sizes are not negative here.
std::optional<uint64_t> element_count(const Shape& shape);
/// Bytes of an array; nothing when that overflows 2^63.
std::optional<uint64_t> find_byte_count(const Shape& shape, std::size_t element_size);

/// Elements of a box within an array that does not overflow.
uint64_t volume(Box box);

/// Why the chunks do not hold every element of the array exactly once; "" when they do. Boxes lie
/// within the shape.
std::string tiling_problem(const Shape& shape, const Layout& layout);

/// The chunks that the writer cuts an array into, in C order, all in shard 0.
Layout cut(const Shape& shape, std::size_t element_size, uint64_t max_chunk_bytes);

std::string box_text(Box box);

/// The runs of bytes that a chunk takes of its array, in C order of the chunk.
class Runs {
 public:
  Runs(const Shape& shape, Box box, std::size_t element_size);

  /// Bytes of the chunk that are still to come.
  uint64_t left() const noexcept { return left_; }
  /// The bytes [first, first + count) of the array come next; count is at most `limit` and not 0
  /// unless `limit` or left() is.
  struct Run {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  Run next(uint64_t limit);

 private:
  struct Axis {
    int64_t extent = 0;
    int64_t index = 0;
    uint64_t stride = 0;  // in bytes
  };
  void advance();

  std::vector<Axis> axes_;  // those that do not belong to a run
  uint64_t run_bytes_ = 0;
  uint64_t begin_ = 0;   // of the current run
  uint64_t within_ = 0;  // what of it was given
  uint64_t left_ = 0;
};

}  // namespace moesaic::vmoe_checkpoint
