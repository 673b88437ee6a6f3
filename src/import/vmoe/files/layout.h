// SPDX-License-Identifier: Apache-2.0
// Arrays of a V-MoE checkpoint, how they are split into chunks, and where the elements of a chunk
// lie in its array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic::vmoe_checkpoint {

using Shape = std::vector<int64_t>;
/// Extent of a chunk in its array: start and stop of every axis in turn.
using Box = std::span<const int64_t>;

inline constexpr uint64_t kNowhere = UINT64_MAX;

/// An array of a checkpoint. `name` joins the keys of the index, e.g.
/// "Encoder/encoderblock_1/Moe/Mlp/Dense_0/bias". `dtype` is NumPy's name: bool, int8 to int64,
/// uint8 to uint64, float16, float32, float64, or bfloat16.
struct Entry {
  std::string name;
  std::string dtype;
  Shape shape;  ///< Sizes of the axes; empty for a scalar.

  bool operator==(const Entry&) const = default;
};

/// Chunks of one array, in flat vectors, since an index may list many.
struct Layout {
  std::size_t rank = 0;
  std::vector<int64_t> bounds = {};   // Boxes of all chunks, concatenated.
  std::vector<uint32_t> shards = {};  // Shard of every chunk.
  std::vector<uint64_t> offsets =
      {};  // Offset of every chunk in its shard; kNowhere until it is found.

  std::size_t size() const { return shards.size(); }
  Box box(std::size_t chunk) const { return Box(bounds).subspan(2 * rank * chunk, 2 * rank); }
  void add(Box box, uint32_t shard);
  /// Sorts the chunks by box, as find() requires.
  void sort();
  /// Returns the index of the chunk with exactly this box.
  std::optional<std::size_t> find(Box box) const;
};

struct Array : Entry {
  Layout layout;
};

/// Returns the size of one element in bytes. The second throws Error (failure) for an unknown
/// dtype.
std::optional<std::size_t> find_dtype_size(std::string_view dtype);
std::size_t dtype_size(std::string_view dtype);

/// Returns the size of an array in bytes. Above 2^63, the first returns nullopt and the second
/// throws Error (failure).
std::optional<uint64_t> find_byte_count(const Shape& shape, std::size_t element_size);
uint64_t byte_count(const Entry& entry);

/// Returns the number of elements of a box within an array that does not overflow.
uint64_t volume(Box box);

/// Returns why the chunks, all within the shape, do not tile the array exactly; "" if they do.
std::string tiling_problem(const Shape& shape, const Layout& layout);

/// Returns the chunks that the writer splits an array into, in C order, all in shard 0.
Layout cut(const Shape& shape, std::size_t element_size, uint64_t max_chunk_bytes);

std::string box_text(Box box);

/// Contiguous byte ranges that a chunk occupies in its array, in C order of the chunk.
class Runs {
 public:
  Runs(const Shape& shape, Box box, std::size_t element_size);

  /// Returns the number of bytes of the chunk that are still to come.
  uint64_t left() const noexcept { return left_; }
  /// Bytes [first, first + count) of the array. `count` is at most `limit`, and 0 only if `limit`
  /// or left() is 0.
  struct Run {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  Run next(uint64_t limit);

 private:
  struct Axis {
    int64_t extent = 0;
    int64_t index = 0;
    uint64_t stride = 0;  // Stride in bytes.
  };

  std::vector<Axis> axes_;  // Axes outside a run.
  uint64_t run_bytes_ = 0;
  uint64_t begin_ = 0;   // Begin of the current run.
  uint64_t within_ = 0;  // Bytes of it already returned.
  uint64_t left_ = 0;
};

}  // namespace moesaic::vmoe_checkpoint
