// SPDX-License-Identifier: Apache-2.0
// Checkpoints that google-research/vmoe writes and has released, in MessagePack: PREFIX.index lists
// the arrays and how they are split into chunks, PREFIX.data-nnnnn-of-NNNNN hold the chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layout.h"
#include "moesaic/base/file.h"

namespace moesaic::vmoe_checkpoint {

/// Max size of an index in bytes, when reading and writing.
inline constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;
inline constexpr std::size_t kMaxRank = 32;
/// Max number of parts of a name, which is the nesting depth of the index.
inline constexpr std::size_t kMaxDepth = 64;
inline constexpr std::size_t kMaxNameBytes = 1024;
/// Max number of shards of a checkpoint, since file names number them with five digits.
inline constexpr int64_t kMaxShards = 99'999;

/// What PREFIX.index holds.
struct Index {
  int64_t shard_count = 0;
  std::string version = {};        // "" for files that predate the field.
  std::vector<Array> arrays = {};  // By number; their chunks are sorted.
};

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
  explicit Reader(const std::filesystem::path& prefix);

  /// Returns the entries in the order of the array numbers: depth first, the keys of every map
  /// sorted by code point.
  const std::vector<Array>& entries() const noexcept { return index_.arrays; }
  /// Returns the entry of a name, or nullptr if there is none.
  const Array* find(std::string_view name) const;
  /// Fills `out`, of exactly byte_count(entry) bytes, row-major and little-endian, without extra
  /// memory. Throws Error (failure) for a bool that is neither 0 nor 1, Error (usage) for an entry
  /// of another checkpoint and for a wrong size.
  void read(const Entry& entry, std::span<std::byte> out) const;
  /// Visits the bytes of an array in place, without copying: each byte is passed once, in runs of
  /// whole elements that begin at byte `first` of the array, in any order.
  using Visitor = std::function<void(uint64_t first, std::span<const std::byte> run)>;
  void visit(const Entry& entry, const Visitor& visitor) const;

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
/// of another write. On failure all written files are removed. Throws Error (failure) for names
/// that form no tree ("a" beside "a/b"), are duplicate, empty or not UTF-8, and for wrong shapes,
/// dtypes or sizes; Error (usage) for options out of range.
void write(const std::filesystem::path& prefix, std::vector<Entry> entries, const Source& source,
           const WriteOptions& options = {});

}  // namespace moesaic::vmoe_checkpoint
