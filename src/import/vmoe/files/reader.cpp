// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "checkpoint.h"
#include "message_pack.h"
#include "moesaic/base/checked_math.h"

namespace moesaic::vmoe_checkpoint {
namespace {

using message_pack::Input;
using message_pack::Kind;

// Number of bytes copied before their pages are released.
constexpr std::size_t kCopyBytes = std::size_t{16} << 20;

// Reads a chunk's box, as stored in index and shards, into `box`, to the input's end.
void read_box(Input input, const Shape& shape, std::vector<int64_t>& box) {
  box.clear();
  input.array_of(shape.size(), "a chunk's axes");
  for (const int64_t size : shape) {
    Input axis = input.packed("an axis");
    axis.array_of(3, "an axis");
    const uint64_t place = axis.position();
    const int64_t start = axis.size("a start"), stop = axis.size("a stop");
    if (start > stop || stop > size) {
      axis.refuse(place, "a chunk takes {}:{} of an axis of size {}", start, stop, size);
    }
    axis.nil("the step");
    axis.end("an axis");
    box.insert(box.end(), {start, stop});
  }
  input.end("a chunk's place");
}

// Parses one tree of keys, each of whose leaves is an array.
class IndexParser {
 public:
  explicit IndexParser(std::vector<Array>& arrays) : arrays_(arrays) {}

  void tree(Input& input, const std::string& parent, std::size_t depth) {
    const uint64_t start = input.position();
    if (depth > kMaxDepth) input.refuse(start, "nested deeper than {} maps", kMaxDepth);
    const uint64_t count = input.map("index");
    std::vector<std::string_view> keys;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t place = input.position();
      const std::string_view key = keys.emplace_back(input.string("a key"));
      if (find_invalid_utf8(key)) input.refuse(place, "key {} is not valid UTF-8", printable(key));
      if (key.find('/') != key.npos) input.refuse(place, "key {} has a '/'", printable(key));
      const std::string name = depth == 1 ? std::string(key) : fmt::format("{}/{}", parent, key);
      if (name.size() > kMaxNameBytes) {
        input.refuse(place, "name {} is longer than {} bytes", printable(name), kMaxNameBytes);
      }
      if (input.peek("an array or a map") == Kind::map) {
        tree(input, name, depth + 1);
      } else {
        leaf(input, name);
      }
    }
    std::ranges::sort(keys);
    const auto twice = std::ranges::adjacent_find(keys);
    if (twice != keys.end()) input.refuse(start, "key {} stands twice in a map", printable(*twice));
  }

 private:
  void leaf(Input& input, const std::string& name) {
    name_bytes_ += name.size();
    if (name_bytes_ > kMaxIndexBytes) input.refuse(input.position(), "the names are too long");
    input.set_array(name);
    Input body = input.extension(kIndexType, "an index entry");
    body.array_of(3, "an index entry");
    Array array = header(body.packed("shape and dtype"));
    chunks(body, array);
    body.end("the index entry");
    array.name = name;
    arrays_.push_back(std::move(array));
    input.set_array({});
  }

  static Array header(Input in) {
    in.array_of(4, "shape and dtype");
    Array array;
    const uint64_t shape_start = in.position(), rank = in.array("the shape");
    if (rank > kMaxRank)
      in.refuse(shape_start, "rank {}, at most {} are supported", rank, kMaxRank);
    for (uint64_t a = 0; a < rank; ++a) array.shape.push_back(in.size("a dimension"));
    array.layout.rank = rank;
    const uint64_t dtype_start = in.position();
    array.dtype = in.string("the dtype");
    const auto element = find_dtype_size(array.dtype);
    if (!element) in.refuse(dtype_start, "unknown dtype {}", printable(array.dtype));
    if (!find_byte_count(array.shape, *element)) {
      in.refuse(shape_start, "shape {} is larger than any file", shape_text(array.shape));
    }
    in.boolean("the weak flag");
    if (in.map("the named shape") != 0) in.refuse(in.position(), "the named shape must be empty");
    in.end("shape and dtype");
    return array;
  }

  static void chunks(Input& body, Array& array) {
    const uint64_t count = body.array("the chunks");
    std::vector<int64_t> box;
    for (uint64_t i = 0; i < count; ++i) {
      read_box(body.packed("a chunk's place"), array.shape, box);
      array.layout.add(box, 0);
    }
    body.array_of(count, "the shards of the chunks");
    for (uint32_t& shard : array.layout.shards) {
      const uint64_t start = body.position(), number = body.natural("a shard");
      if (number >= static_cast<uint64_t>(kMaxShards))
        body.refuse(start, "unknown shard {}", number);
      shard = static_cast<uint32_t>(number);
    }
    array.layout.sort();
  }

  std::vector<Array>& arrays_;
  uint64_t name_bytes_ = 0;
};

// Parses untrusted bytes. Shapes, and boxes within them, are checked; whether the chunks tile their
// arrays, and whether the shards can hold that much data, is not.
Index read_index(const std::string& file) {
  const MappedFile mapping(file);
  const std::span<const std::byte> bytes = mapping.bytes();
  if (bytes.size() > kMaxIndexBytes) {
    fail("{}: {} bytes long, an index has at most {}", file, bytes.size(), kMaxIndexBytes);
  }
  Index index;
  Input input(bytes, file);
  bool has_tree = false, has_version = false;
  const uint64_t count = input.map("the index file");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t start = input.position();
    const std::string_view key = input.string("a key");
    if (key == "shard_count" && index.shard_count == 0) {
      index.shard_count = input.size("shard_count");
      if (index.shard_count < 1 || index.shard_count > kMaxShards) {
        input.refuse(start, "shard_count must be 1 to {}, found {}", kMaxShards, index.shard_count);
      }
    } else if (key == "index" && !std::exchange(has_tree, true)) {
      IndexParser(index.arrays).tree(input, "", 1);
    } else if (key == "version" && !std::exchange(has_version, true)) {
      index.version = input.string("version");
      if (index.version != kVersion) {
        input.refuse(start, "unknown version {}, expected {}", printable(index.version), kVersion);
      }
    } else {
      input.refuse(start, "unknown or repeated key {}; expected shard_count, index and version",
                   printable(key));
    }
  }
  input.end("the index");
  if (index.shard_count == 0) fail("{}: no key shard_count", file);
  if (!has_tree) fail("{}: no key index", file);
  for (const Array& array : index.arrays) {
    for (const uint32_t shard : array.layout.shards) {
      if (shard < index.shard_count) continue;
      fail("{}: array {}: unknown shard {}, there are {}", file, printable(array.name), shard,
           index.shard_count);
    }
  }
  std::ranges::sort(index.arrays, comes_before, &Array::name);
  return index;
}

// Visits the values of all pieces of a chunk; returns the number of elements.
uint64_t visit_pieces(Input& input, const Entry& entry, auto&& visit) {
  input.array_of(2, "a chunk");
  const uint64_t pieces = input.array("the pieces of a chunk");
  uint64_t total = 0;
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t start = input.position();
    Input body = input.extension(kPieceType, "a piece");
    body.array_of(3, "a piece");
    body.array_of(1, "the shape of a piece");
    const uint64_t count = body.natural("the length of a piece"), dtype_start = body.position();
    const std::string_view dtype = body.string("the dtype of a piece");
    if (dtype != entry.dtype) {
      body.refuse(dtype_start, "a piece is {}, the index says {}", printable(dtype), entry.dtype);
    }
    const auto values = body.binary("the values of a piece");
    if (checked_mul(count, dtype_size(entry.dtype)) != values.size()) {
      body.refuse(start, "a piece of {} {} has {} bytes", count, dtype, values.size());
    }
    body.end("a piece");
    total += count;  // Cannot overflow: at most the file's size.
    visit(values, body.position() - values.size());
  }
  return total;
}

// Finds the next chunk of an array in the index and records its offset.
void parse_chunk(Input& input, Array& array, uint32_t shard) {
  const uint64_t start = input.position();
  const uint64_t found = visit_pieces(input, array, [](auto&&...) {});
  const uint64_t place = input.position();
  std::vector<int64_t> box;
  read_box(input.extension(kPlaceType, "a chunk's place"), array.shape, box);
  const auto chunk = array.layout.find(box);
  if (!chunk || array.layout.shards[*chunk] != shard) {
    input.refuse(place, "the index has no chunk {} in this shard", box_text(box));
  }
  uint64_t& offset = array.layout.offsets[*chunk];
  if (offset != kNowhere) input.refuse(place, "chunk {} stands here twice", box_text(box));
  if (found != volume(box)) {
    input.refuse(start, "chunk {} has {} elements, its pieces have {}", box_text(box), volume(box),
                 found);
  }
  offset = start;
}

// Finds the chunks of one shard and records their offsets.
void parse_shard(const MappedShard& shard, uint32_t shard_number, std::vector<Array>& arrays) {
  Input input(shard.mapping.bytes(), shard.file);
  const uint64_t keys = input.map("the shard");
  bool marked = false;
  for (uint64_t i = 0; i < keys; ++i) {
    const uint64_t start = input.position();
    const std::string_view key = input.string("a key");
    if (key == kChunksKey) {
      if (marked || !input.boolean(key)) input.refuse(start, "{} must be true, once", key);
      marked = true;
      continue;
    }
    const auto number = parsed_number<std::size_t>(key);
    if (!number || std::to_string(*number) != key) {  // No other form, such as "01".
      input.refuse(start, "key {} is not an array number", printable(key));
    }
    if (*number >= arrays.size()) {
      input.refuse(start, "array number {}, the index has {} arrays", *number, arrays.size());
    }
    Array& array = arrays[*number];
    input.set_array(array.name);
    const uint64_t chunks = input.array("the chunks");
    for (uint64_t c = 0; c < chunks; ++c) parse_chunk(input, array, shard_number);
    input.set_array({});
  }
  input.end("the shard");
  if (!marked) input.refuse(0, "no key {}", kChunksKey);
}

std::vector<MappedShard> map_shards(const fs::path& prefix, int64_t count) {
  std::vector<MappedShard> shards;
  for (int64_t i = 0; i < count; ++i) {
    const fs::path path = shard_path(prefix, i, count);
    shards.push_back({path.string(), MappedFile(path)});
  }
  for (const MappedShard& shard : shards) {
    if (shard.mapping.bytes().empty()) fail("{}: the shard is empty, 0 bytes", shard.file);
  }
  return shards;
}

// Checks the claimed sizes against the shards before anything is allocated for them.
void check_claims(const Index& index, const std::vector<MappedShard>& shards,
                  const std::string& file) {
  constexpr std::size_t kShown = 8;
  uint64_t all = 0, taken = 0;
  std::vector<std::string> sizes;  // They show a truncated shard.
  for (const MappedShard& shard : shards) {
    all += shard.mapping.bytes().size();
    if (sizes.size() <= kShown) sizes.push_back(std::to_string(shard.mapping.bytes().size()));
  }
  if (sizes.size() > kShown) sizes.back() = "...";
  for (const Array& array : index.arrays) {
    const uint64_t bytes = byte_count(array);
    if (bytes > all - taken) {
      fail(
          "{}: array {}: {} of shape {} needs {} bytes; the shards have {} in all, {} of them "
          "for other arrays; a shard may be cut short, their bytes are {}",
          file, printable(array.name), array.dtype, shape_text(array.shape), bytes, all, taken,
          fmt::join(sizes, ", "));
    }
    taken += bytes;
  }
}

void check_found(const Index& index, const std::vector<MappedShard>& shards) {
  for (std::size_t i = 0; i < index.arrays.size(); ++i) {
    const Layout& layout = index.arrays[i].layout;
    const auto missing = std::ranges::find(layout.offsets, kNowhere);
    if (missing == layout.offsets.end()) continue;
    const auto chunk = static_cast<std::size_t>(missing - layout.offsets.begin());
    fail("{}: array {} (number {}): chunk {} is missing", shards[layout.shards[chunk]].file,
         printable(index.arrays[i].name), i, box_text(layout.box(chunk)));
  }
}

void read_chunk(const MappedShard& shard, const Array& array, std::size_t chunk,
                std::span<std::byte> out) {
  const uint64_t start = array.layout.offsets[chunk];
  Input input(shard.mapping.bytes().subspan(start), shard.file, start);
  input.set_array(array.name);
  Runs runs(array.shape, array.layout.box(chunk), dtype_size(array.dtype));
  visit_pieces(input, array, [&](std::span<const std::byte> piece, uint64_t position) {
    if (piece.size() > runs.left()) input.refuse(position, "changed while it was read");
    if (array.dtype == "bool") {
      const auto wrong = std::ranges::find_if(piece, [](std::byte b) { return b > std::byte{1}; });
      if (wrong != piece.end()) {
        input.refuse(position + static_cast<uint64_t>(wrong - piece.begin()),
                     "a bool must be 0 or 1, found {}", static_cast<int>(*wrong));
      }
    }
    for (std::size_t done = 0; done < piece.size();) {
      const auto part = piece.subspan(done, std::min(kCopyBytes, piece.size() - done));
      for (std::size_t copied = 0; copied < part.size();) {
        const Runs::Run run = runs.next(part.size() - copied);
        std::memcpy(out.data() + run.first, part.data() + copied, run.count);
        copied += run.count;
      }
      shard.mapping.release(part);
      done += part.size();
    }
  });
}

}  // namespace

int64_t shard_count(const fs::path& prefix) {
  return read_index(index_path(prefix).string()).shard_count;
}

Reader::Reader(const fs::path& prefix) {
  const std::string file = index_path(prefix).string();
  index_ = read_index(file);
  shards_ = map_shards(prefix, index_.shard_count);
  check_claims(index_, shards_, file);
  for (const Array& array : index_.arrays) {
    const std::string problem = tiling_problem(array.shape, array.layout);
    if (!problem.empty()) fail("{}: array {}: {}", file, printable(array.name), problem);
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    parse_shard(shards_[i], static_cast<uint32_t>(i), index_.arrays);
    shards_[i].mapping.release(shards_[i].mapping.bytes());
  }
  check_found(index_, shards_);
}

const Array* Reader::find(std::string_view name) const {
  const auto place = std::ranges::lower_bound(entries(), name, comes_before, &Array::name);
  return place == entries().end() || place->name != name ? nullptr : &*place;
}

void Reader::read(const Entry& entry, std::span<std::byte> out) const {
  const Array& array = *find(entry.name);
  for (std::size_t chunk = 0; chunk < array.layout.size(); ++chunk) {
    read_chunk(shards_[array.layout.shards[chunk]], array, chunk, out);
  }
}

}  // namespace moesaic::vmoe_checkpoint
