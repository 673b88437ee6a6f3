// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <map>
#include <system_error>

#include "checkpoint.h"
#include "message_pack.h"

namespace moesaic::vmoe_checkpoint {
namespace {

using message_pack::Output;

std::string box_body(Box box) {
  Output out;
  out.array(box.size() / 2);
  for (std::size_t a = 0; a < box.size(); a += 2) {
    Output axis;
    axis.array(3).natural(static_cast<uint64_t>(box[a])).natural(static_cast<uint64_t>(box[a + 1]));
    out.binary(axis.nil().text());
  }
  return out.text();
}

std::string entry_body(const Array& array) {
  Output header, body;
  header.array(4).array(array.shape.size());
  for (const int64_t n : array.shape) header.natural(static_cast<uint64_t>(n));
  header.string(array.dtype).boolean(false).map(0);
  const Layout& layout = array.layout;
  body.array(3).binary(header.text()).array(layout.size());
  for (std::size_t i = 0; i < layout.size(); ++i) body.binary(box_body(layout.box(i)));
  body.array(layout.size());
  for (const uint32_t shard : layout.shards) body.natural(shard);
  return body.text();
}

// Writes the map that holds these arrays, whose names agree in their first `prefix` bytes.
void write_tree(Output& out, std::span<const Array> arrays, std::size_t prefix) {
  std::vector<std::pair<std::string_view, std::size_t>> keys;  // With the first array of each.
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const std::string_view rest = std::string_view(arrays[i].name).substr(prefix);
    const std::string_view key = rest.substr(0, rest.find('/'));
    if (keys.empty() || keys.back().first != key) keys.emplace_back(key, i);
  }
  out.map(keys.size());
  keys.emplace_back("", arrays.size());
  for (std::size_t k = 0; k + 1 < keys.size(); ++k) {
    const auto& [key, first] = keys[k];
    const std::size_t end = prefix + key.size();
    out.string(key);
    if (end == arrays[first].name.size()) {
      out.extension(kIndexType, entry_body(arrays[first]));
    } else {
      write_tree(out, arrays.subspan(first, keys[k + 1].second - first), end + 1);
    }
  }
}

// Returns the content of the index file; the arrays are sorted and their names form a tree.
std::string index_text(const Index& index) {
  Output out;
  out.map(3)
      .string("shard_count")
      .natural(static_cast<uint64_t>(index.shard_count))
      .string("index");
  write_tree(out, index.arrays, 0);
  return out.string("version").string(kVersion).text();
}

// Shard file that buffers small writes; large ones bypass the buffer.
class ShardFile {
 public:
  explicit ShardFile(const fs::path& path) : file(path) {}

  void put(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBufferBytes) flush();
    if (bytes.size() > kBufferBytes) {
      file.write(bytes);
    } else {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    }
  }
  void put(const Output& objects) { put(std::as_bytes(std::span(objects.text()))); }
  void flush() {
    file.write(buffer_);
    buffer_.clear();
  }

  AtomicFile file;

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{256} << 10;
  std::vector<std::byte> buffer_;
};

Index plan(std::vector<Entry> entries, const WriteOptions& options) {
  std::ranges::sort(entries, comes_before, &Entry::name);
  Index index{.shard_count = options.shards};
  std::vector<uint64_t> bytes(static_cast<std::size_t>(options.shards));
  for (Entry& entry : entries) {
    const std::size_t element = dtype_size(entry.dtype);
    Layout layout = cut(entry.shape, element, options.max_chunk_bytes);
    for (std::size_t chunk = 0; chunk < layout.size(); ++chunk) {
      const auto min = std::ranges::min_element(bytes);
      *min += volume(layout.box(chunk)) * element;
      layout.shards[chunk] = static_cast<uint32_t>(min - bytes.begin());
    }
    index.arrays.push_back({std::move(entry), std::move(layout)});
  }
  return index;
}

// Returns the number of chunks of an array per shard, for shards that hold any.
std::map<uint32_t, uint64_t> chunks_by_shard(const Array& array) {
  std::map<uint32_t, uint64_t> counts;
  for (const uint32_t shard : array.layout.shards) ++counts[shard];
  return counts;
}

void put_chunk(ShardFile& shard, const Array& array, Box box, std::span<const std::byte> values,
               uint64_t max_piece_bytes) {
  const std::size_t element = dtype_size(array.dtype);
  const uint64_t piece = std::max<uint64_t>(1, max_piece_bytes / element) * element;
  Runs runs(array.shape, box, element);
  // A chunk without elements still has one piece, since the reference joins at least one.
  const uint64_t pieces = runs.left() == 0 ? 1 : (runs.left() - 1) / piece + 1;
  shard.put(Output().array(2).array(pieces));
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t bytes = std::min(piece, runs.left());
    Output header;
    header.array(3).array(1).natural(bytes / element).string(array.dtype).binary_header(bytes);
    shard.put(Output().extension_header(kPieceType, header.text().size() + bytes));
    shard.put(header);
    for (uint64_t left = bytes; left > 0;) {
      const Runs::Run run = runs.next(left);
      shard.put(values.subspan(run.first, run.count));
      left -= run.count;
    }
  }
  shard.put(Output().extension(kPlaceType, box_body(box)));
}

// Commits the shards, then the index, whose predecessor is removed before; on failure withdraws
// all, the index first.
void put_into_place(std::deque<ShardFile>& shards, AtomicFile& index, const fs::path& index_place) {
  std::error_code error;
  fs::remove(index_place, error);
  if (error) fail("{}: cannot remove: {}", index_place.string(), error.message());
  try {
    for (ShardFile& shard : shards) shard.file.commit();
    index.commit();
  } catch (...) {
    index.rollback();
    for (ShardFile& shard : shards) shard.file.rollback();
    throw;
  }
}

}  // namespace

void write(const fs::path& prefix, std::vector<Entry> entries, const Source& source,
           const WriteOptions& options) {
  if (options.shards < 1 || options.shards > kMaxShards) {
    fail_usage("V-MoE checkpoint: shards must be 1 to {}, not {}", kMaxShards, options.shards);
  }
  const fs::path index_place = index_path(prefix);
  const std::string file = index_place.string();
  const Index index = plan(std::move(entries), options);
  const std::string text = index_text(index);
  if (text.size() > kMaxIndexBytes) {
    fail("{}: would be {} bytes long, at most {} are allowed", file, text.size(), kMaxIndexBytes);
  }
  std::vector<uint64_t> keys(static_cast<std::size_t>(options.shards), 1);
  for (const Array& array : index.arrays) {
    for (const auto& [shard, chunks] : chunks_by_shard(array)) ++keys[shard];
  }
  std::deque<ShardFile> shards;
  for (const uint64_t count : keys) {
    shards.emplace_back(shard_path(prefix, static_cast<int64_t>(shards.size()), options.shards));
    shards.back().put(Output().map(count).string(kChunksKey).boolean(true));
  }
  for (std::size_t i = 0; i < index.arrays.size(); ++i) {
    if (options.poll) options.poll();
    const Array& array = index.arrays[i];
    const std::span<const std::byte> values = source(array);
    if (values.size() != byte_count(array)) {
      fail("{}: array {}: {} of shape {} does not have {} bytes", file, printable(array.name),
           array.dtype, shape_text(array.shape), values.size());
    }
    for (const auto& [shard, chunks] : chunks_by_shard(array)) {
      shards[shard].put(Output().string(std::to_string(i)).array(chunks));
    }
    const Layout& layout = array.layout;
    for (std::size_t c = 0; c < layout.size(); ++c) {
      put_chunk(shards[layout.shards[c]], array, layout.box(c), values, options.max_piece_bytes);
    }
  }
  AtomicFile index_file(index_place);
  index_file.write(text);
  for (ShardFile& shard : shards) {
    shard.flush();
    shard.file.sync();
  }
  index_file.sync();
  if (options.poll) options.poll();
  put_into_place(shards, index_file, index_place);
}

}  // namespace moesaic::vmoe_checkpoint
