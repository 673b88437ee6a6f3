// SPDX-License-Identifier: Apache-2.0
// The checkpoints that google-research/vmoe writes and released: PREFIX.index says which arrays
// there are and how they are cut into chunks, PREFIX.data-nnnnn-of-NNNNN hold the chunks.
// MessagePack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic::vmoe_checkpoint {

/// Longest index that is read or written.
inline constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;
inline constexpr std::size_t kMaxRank = 32;
/// Parts of a name: how deep the index may be nested.
inline constexpr std::size_t kMaxDepth = 64;
inline constexpr std::size_t kMaxNameBytes = 1024;
/// Shards of a checkpoint: their numbers have five digits.
inline constexpr int64_t kMaxShards = 99'999;

/// One array. `name` joins the keys of the index, e.g.
/// "Encoder/encoderblock_1/Moe/Mlp/Dense_0/bias". `dtype` is NumPy's name: bool, int8 to int64,
/// uint8 to uint64, float16, float32, float64, or bfloat16.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;  ///< empty for a scalar

  bool operator==(const Entry&) const = default;
};

/// Bytes of one element; Error(failure) for an unknown dtype.
std::size_t dtype_size(std::string_view dtype);

/// Bytes of the whole array; Error(failure) where that is more than 2^63.
uint64_t byte_count(const Entry& entry);

/// A checkpoint whose structure passed every check: each shard there and whole, each chunk that the
/// index lists found once, of the right dtype and size, and nothing besides; each element of each
/// array in exactly one chunk. Otherwise Error(failure) in one line with file and byte. Values
/// themselves carry no checksum. Files are mapped; what is allocated grows with the index only.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& prefix);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  /// In the order of the array numbers: depth first, the keys of every map sorted by code point.
  const std::vector<Entry>& entries() const noexcept;
  /// nullptr when there is none of that name.
  const Entry* find(std::string_view name) const;
  /// Fills `out`, of exactly byte_count(entry) bytes, row-major and little-endian. Takes no further
  /// memory. Error(failure) for a bool that is neither 0 nor 1, Error(usage) for an entry of
  /// another checkpoint and for a wrong size.
  void read(const Entry& entry, std::span<std::byte> out) const;
  /// The same, piece by piece and straight from the files, for someone who makes something else of
  /// the bytes: each byte of the array is handed over once, in runs of whole elements that begin at
  /// `first`, in any order.
  using Visitor = std::function<void(uint64_t first, std::span<const std::byte> run)>;
  void visit(const Entry& entry, const Visitor& visitor) const;

  int64_t shard_count() const noexcept;
  /// "" in files older than that field.
  const std::string& version() const noexcept;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

/// Gives an array's bytes, row-major and little-endian, which must stay until the next call.
using Source = std::function<std::span<const std::byte>(const Entry&)>;

struct WriteOptions {
  int64_t shards = 1;
  uint64_t max_chunk_bytes = uint64_t{256} << 20;  ///< larger arrays are cut
  uint64_t max_piece_bytes = uint64_t{1} << 30;    ///< of a chunk; no more than this default
  /// Called before each array, and before the first file comes into place; may throw to stop.
  std::function<void()> poll = {};
};

/// Writes a checkpoint that the reference reads. `source` is asked for each array once, in the
/// order of the array numbers. While an array is larger than `max_chunk_bytes`, the shortest of its
/// axes that can be cut (the first of these) is cut by its smallest prime factor; each chunk goes
/// to the shard with the fewest bytes so far, the first such. Files are written beside their
/// places, and only when all are whole on the disk do they come there: an index that was there is
/// removed before the first shard does and the new one comes last, so no index ever stands beside
/// shards of another write. Where it fails, nothing of what was written stays. Throws
/// Error(failure) for names that are no tree ("a" beside "a/b"), twice the same, empty or not
/// UTF-8, for wrong shapes, dtypes or sizes; Error(usage) for options out of range.
void write(const std::filesystem::path& prefix, std::vector<Entry> entries, const Source& source,
           const WriteOptions& options = {});

}  // namespace moesaic::vmoe_checkpoint
