// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <system_error>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/text.h"
#include "moesaic/formats/vmoe_checkpoint.h"
#include "vmoe_checkpoint_index.h"
#include "vmoe_checkpoint_layout.h"

namespace moesaic::vmoe_checkpoint {
namespace {

namespace fs = std::filesystem;
using message_pack::Output;

// Shard file that buffers small writes; large ones bypass the buffer.
class ShardFile {
 public:
  explicit ShardFile(const fs::path& path) : file_(path) {}

  void put(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBufferBytes) flush();
    if (bytes.size() > kBufferBytes) {
      file_.write(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }
  void put(std::string_view text) { put(std::as_bytes(std::span(text))); }

  void sync() {
    flush();
    file_.sync();
  }
  void commit() { file_.commit(); }
  void withdraw() noexcept { file_.withdraw(); }

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{256} << 10;

  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  AtomicFile file_;
  std::vector<std::byte> buffer_;
};

void check_options(const WriteOptions& options) {
  if (options.shards < 1 || options.shards > kMaxShards) {
    fail_usage("V-MoE checkpoint: shards must be 1 to {}, not {}", kMaxShards, options.shards);
  }
  const uint64_t longest = WriteOptions{}.max_piece_bytes;
  if (options.max_piece_bytes < 1 || options.max_piece_bytes > longest) {
    fail_usage("V-MoE checkpoint: max_piece_bytes must be 1 to {}, not {}", longest,
               options.max_piece_bytes);
  }
  if (options.max_chunk_bytes < 1) fail_usage("V-MoE checkpoint: max_chunk_bytes must not be 0");
}

void check_written(const Entry& entry, const std::string& file) {
  const std::string name = printable(entry.name);
  if (entry.name.empty()) fail("{}: an array has no name", file);
  if (find_invalid_utf8(entry.name)) fail("{}: array {}: its name is not valid UTF-8", file, name);
  if (entry.name.size() > kMaxNameBytes) {
    fail("{}: name {} is longer than {} bytes", file, name, kMaxNameBytes);
  }
  if (static_cast<std::size_t>(std::ranges::count(entry.name, '/')) >= kMaxDepth) {
    fail("{}: array {}: its name has more than {} parts", file, name, kMaxDepth);
  }
  if (entry.shape.size() > kMaxRank) {
    fail("{}: array {}: rank {}, at most {} are supported", file, name, entry.shape.size(),
         kMaxRank);
  }
  for (const int64_t n : entry.shape) {
    if (n < 0) fail("{}: array {}: negative size {}", file, name, n);
  }
  byte_count(entry);
}

// Checks that sorted names form a tree; conflicting ones (equal, array and map) are neighbours.
void check_tree(const std::vector<Entry>& entries, const std::string& file) {
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const std::string &a = entries[i - 1].name, &b = entries[i].name;
    if (a == b) fail("{}: two arrays are named {}", file, printable(a));
    if (b.starts_with(a + "/")) {
      fail("{}: {} and {} cannot both be arrays", file, printable(a), printable(b));
    }
  }
}

Index plan(std::vector<Entry> entries, const WriteOptions& options, const std::string& file) {
  for (const Entry& entry : entries) check_written(entry, file);
  std::ranges::sort(entries, comes_before, &Entry::name);
  check_tree(entries, file);
  Index index{.shard_count = options.shards,
              .version = std::string(kVersion),
              .entries = std::move(entries),
              .layouts = {}};
  std::vector<uint64_t> bytes(static_cast<std::size_t>(options.shards));
  for (const Entry& entry : index.entries) {
    const std::size_t element = dtype_size(entry.dtype);
    Layout layout = cut(entry.shape, element, options.max_chunk_bytes);
    const std::string problem = tiling_problem(entry.shape, layout);
    if (!problem.empty()) fail("{}: array {}: {}", file, printable(entry.name), problem);
    for (std::size_t chunk = 0; chunk < layout.size(); ++chunk) {
      const auto min = std::ranges::min_element(bytes);
      *min += volume(layout.box(chunk)) * element;
      layout.shards[chunk] = static_cast<uint32_t>(min - bytes.begin());
    }
    index.layouts.push_back(std::move(layout));
  }
  return index;
}

// Returns the number of chunks of an array per shard, for shards that hold any.
std::vector<std::pair<uint32_t, uint64_t>> chunks_by_shard(const Layout& layout) {
  std::vector<uint32_t> shards = layout.shards;
  std::ranges::sort(shards);
  std::vector<std::pair<uint32_t, uint64_t>> counts;
  for (const uint32_t shard : shards) {
    if (counts.empty() || counts.back().first != shard) counts.emplace_back(shard, 0);
    ++counts.back().second;
  }
  return counts;
}

void put_piece(ShardFile& shard, const Entry& entry, uint64_t bytes, Runs& runs,
               std::span<const std::byte> values) {
  Output header;
  header.array(3).array(1).natural(bytes / dtype_size(entry.dtype)).string(entry.dtype);
  header.binary_header(bytes);
  Output extension;
  extension.extension_header(kArrayType, header.text().size() + bytes);
  shard.put(extension.text());
  shard.put(header.text());
  for (uint64_t left = bytes; left > 0;) {
    const Runs::Run run = runs.next(left);
    shard.put(values.subspan(run.first, run.count));
    left -= run.count;
  }
}

void put_chunk(ShardFile& shard, const Entry& entry, Box box, std::span<const std::byte> values,
               uint64_t max_piece_bytes) {
  const std::size_t element = dtype_size(entry.dtype);
  const uint64_t piece = std::max<uint64_t>(1, max_piece_bytes / element) * element;
  Runs runs(entry.shape, box, element);
  // A chunk without elements still has one piece, since the reference joins at least one.
  const uint64_t pieces = runs.left() == 0 ? 1 : (runs.left() - 1) / piece + 1;
  Output start;
  start.array(2).array(pieces);
  shard.put(start.text());
  for (uint64_t i = 0; i < pieces; ++i) {
    put_piece(shard, entry, std::min(piece, runs.left()), runs, values);
  }
  Output place;
  place.extension(kPlaceType, box_body(box));
  shard.put(place.text());
}

void put_array(std::deque<ShardFile>& shards, const Index& index, std::size_t number,
               std::span<const std::byte> values, uint64_t max_piece_bytes) {
  const Layout& layout = index.layouts[number];
  for (const auto& [shard, count] : chunks_by_shard(layout)) {
    Output start;
    start.string(fmt::format("{}", number)).array(count);
    shards[shard].put(start.text());
  }
  for (std::size_t chunk = 0; chunk < layout.size(); ++chunk) {
    put_chunk(shards[layout.shards[chunk]], index.entries[number], layout.box(chunk), values,
              max_piece_bytes);
  }
}

std::vector<uint64_t> arrays_by_shard(const Index& index) {
  std::vector<uint64_t> counts(static_cast<std::size_t>(index.shard_count));
  for (const Layout& layout : index.layouts) {
    for (const auto& [shard, chunks] : chunks_by_shard(layout)) ++counts[shard];
  }
  return counts;
}

// Commits the shards, then the index; on failure withdraws all, the index first.
void put_into_place(std::deque<ShardFile>& shards, AtomicFile& index) {
  try {
    for (ShardFile& shard : shards) shard.commit();
    index.commit();
  } catch (...) {
    index.withdraw();
    for (ShardFile& shard : shards) shard.withdraw();
    throw;
  }
}

void remove_old(const fs::path& index) {
  std::error_code error;
  fs::remove(index, error);
  if (error) fail("{}: cannot remove: {}", index.string(), error.message());
}

}  // namespace

void write(const fs::path& prefix, std::vector<Entry> entries, const Source& source,
           const WriteOptions& options) {
  check_options(options);
  const fs::path index_place = index_path(prefix);
  const std::string file = index_place.string();
  const Index index = plan(std::move(entries), options, file);
  const std::string text = index_text(index);
  if (text.size() > kMaxIndexBytes) {
    fail("{}: would be {} bytes long, at most {} are allowed", file, text.size(), kMaxIndexBytes);
  }
  const auto poll = [&] {
    if (options.poll) options.poll();
  };
  std::deque<ShardFile> shards;
  for (const uint64_t arrays : arrays_by_shard(index)) {
    const auto number = static_cast<int64_t>(shards.size());
    shards.emplace_back(shard_path(prefix, number, options.shards));
    Output start;
    start.map(1 + arrays).string(kChunksKey).boolean(true);
    shards.back().put(start.text());
  }
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    poll();
    const Entry& entry = index.entries[i];
    const std::span<const std::byte> values = source(entry);
    if (values.size() != byte_count(entry)) {
      fail("{}: array {}: {} of shape [{}] does not have {} bytes", file, printable(entry.name),
           entry.dtype, fmt::join(entry.shape, ", "), values.size());
    }
    put_array(shards, index, i, values, options.max_piece_bytes);
  }
  AtomicFile index_file(index_place);
  index_file.write(text);
  for (ShardFile& shard : shards) shard.sync();
  index_file.sync();
  poll();
  remove_old(index_place);
  put_into_place(shards, index_file);
}

}  // namespace moesaic::vmoe_checkpoint
