// SPDX-License-Identifier: Apache-2.0
// Checkpoints that google-research/vmoe writes and has released, in MessagePack: PREFIX.index lists
// the arrays and how they are split into chunks, PREFIX.data-nnnnn-of-NNNNN hold the chunks.
#pragma once

#include "moesaic/base/file.h"
#include "moesaic/base/filesystem.h"

namespace moesaic::vmoe_checkpoint {

/// Max size of an index in bytes, when reading and writing.
inline constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;
inline constexpr std::size_t kMaxRank = 32;
/// Max number of parts of a name, which is the nesting depth of the index.
inline constexpr std::size_t kMaxDepth = 64;
inline constexpr std::size_t kMaxNameBytes = 1024;
/// Max number of shards of a checkpoint, since file names number them with five digits.
inline constexpr int64_t kMaxShards = 99'999;

inline constexpr int kPieceType = 1;  // MessagePack extension types.
inline constexpr int kPlaceType = 6;
inline constexpr int kIndexType = 8;
inline constexpr std::string_view kChunksKey = "__msgpack_array_chunk_a87ca2__";
inline constexpr std::string_view kVersion = "20220622";

/// Returns whether `a` precedes `b` in depth-first order of the tree of names with sorted keys.
bool comes_before(std::string_view a, std::string_view b);
fs::path index_path(const fs::path& prefix);
fs::path shard_path(const fs::path& prefix, int64_t shard, int64_t count);

using Shape = std::vector<int64_t>;
/// Extent of a chunk in its array: start and stop of every axis in turn.
using Box = std::span<const int64_t>;

inline constexpr uint64_t kNowhere = UINT64_MAX;

/// An array of a checkpoint. `name` joins the keys of the index, e.g.
/// "Encoder/encoderblock_1/Moe/Mlp/Dense_0/bias". `dtype` is NumPy's name: bool, int8 to int64,
/// uint8 to uint64, float16, float32, float64, or bfloat16.
struct Entry {
  std::string name, dtype;
  Shape shape;  ///< Sizes of the axes; empty for a scalar.

  bool operator==(const Entry&) const = default;
};

/// Chunks of one array, in flat vectors, since an index may list many.
struct Layout {
  std::size_t rank = 0;
  std::vector<int64_t> bounds = {};    // Boxes of all chunks, concatenated.
  std::vector<uint32_t> shards = {};   // Shard of every chunk.
  std::vector<uint64_t> offsets = {};  // Of every chunk in its shard; kNowhere until it is found.

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
    uint64_t first = 0, count = 0;
  };
  Run next(uint64_t limit);

 private:
  struct Axis {
    int64_t extent = 0, index = 0;
    uint64_t stride = 0;  // Stride in bytes.
  };

  std::vector<Axis> axes_;  // Axes outside a run.
  uint64_t run_bytes_ = 0;
  uint64_t begin_ = 0;   // Begin of the current run.
  uint64_t within_ = 0;  // Bytes of it already returned.
  uint64_t left_ = 0;
};

/// What PREFIX.index holds.
struct Index {
  int64_t shard_count = 0;
  std::string version = {};        // "" for files that predate the field.
  std::vector<Array> arrays = {};  // By number; their chunks are sorted.
};

/// Returns how many shards PREFIX.index says that there are. Throws Error (failure) as Reader does.
int64_t shard_count(const fs::path& prefix);

struct MappedShard {
  std::string file;
  MappedFile mapping;
};

/// A checkpoint whose structure passed every check: all shards are present and complete, every
/// chunk of the index is found exactly once with the right dtype and size and nothing else is
/// there, and the chunks tile every array. Throws Error (failure) in one line with file and byte
/// offset otherwise. The values carry no checksum. Files are memory-mapped; allocated memory grows
/// with the index, and by a bit for each element of an array whose chunks form no grid.
class Reader {
 public:
  explicit Reader(const fs::path& prefix);

  /// Returns the entries in the order of the array numbers: depth first, the keys of every map
  /// sorted by code point.
  const std::vector<Array>& entries() const noexcept { return index_.arrays; }
  /// Returns the entry of a name, or nullptr if there is none.
  const Array* find(std::string_view name) const;
  /// Fills `out`, of exactly byte_count(entry) bytes, row-major and little-endian, without extra
  /// memory, by one of entries(). Throws Error (failure) for a bool that is neither 0 nor 1.
  void read(const Entry& entry, std::span<std::byte> out) const;

  int64_t shard_count() const noexcept { return index_.shard_count; }
  const std::string& version() const noexcept { return index_.version; }

 private:
  Index index_;
  std::vector<MappedShard> shards_;
};

/// Returns an array's bytes, row-major, little-endian, which must stay valid until the next call.
using Source = std::function<std::span<const std::byte>(const Entry&)>;

struct WriteOptions {
  int64_t shards = 1;
  uint64_t max_chunk_bytes = uint64_t{256} << 20;  ///< Max chunk; larger arrays are split.
  uint64_t max_piece_bytes = uint64_t{1} << 30;    ///< Max piece of a chunk; at most 2^30.
  /// Called before each array and before the files are moved into place; may throw to cancel.
  std::function<void()> poll = {};
};

/// Writes a checkpoint that the reference implementation reads. `source` is called once for each
/// array, in the order of the array numbers. While a chunk is larger than `max_chunk_bytes`, the
/// shortest axis that can be split (the first of these) is split by its smallest prime factor; each
/// chunk goes to the shard with the fewest bytes so far (the first of these). Files are written
/// under temporary names and moved into place once all are complete: an old index is removed before
/// the first shard is moved and the new one is moved last, so an index never stands beside shards
/// of another write. On failure all written files are removed. Names must differ and form a tree
/// (no "a" beside "a/b"). Throws Error (failure) for wrong dtypes and sizes; Error (usage) for a
/// number of shards out of range.
void write(const fs::path& prefix, std::vector<Entry> entries, const Source& source,
           const WriteOptions& options = {});

}  // namespace moesaic::vmoe_checkpoint
