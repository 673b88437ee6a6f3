// SPDX-License-Identifier: Apache-2.0
#include "index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace moesaic::vmoe_checkpoint {
namespace {

using message_pack::Input;
using message_pack::Kind;
using message_pack::Output;

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
      in.refuse(shape_start, "shape [{}] is larger than any file", fmt::join(array.shape, ", "));
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

}  // namespace

bool comes_before(std::string_view a, std::string_view b) {
  // Names are compared part by part: '/' sorts before any byte of a part.
  const auto weight = [](char c) { return c == '/' ? -1 : int{static_cast<unsigned char>(c)}; };
  return std::ranges::lexicographical_compare(a, b, {}, weight, weight);
}

Index parse_index(std::span<const std::byte> bytes, const std::string& file) {
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

std::string index_text(const Index& index) {
  Output out;
  out.map(3)
      .string("shard_count")
      .natural(static_cast<uint64_t>(index.shard_count))
      .string("index");
  write_tree(out, index.arrays, 0);
  return out.string("version").string(kVersion).text();
}

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

std::filesystem::path index_path(const std::filesystem::path& prefix) {
  return prefix.string() + ".index";
}

std::filesystem::path shard_path(const std::filesystem::path& prefix, int64_t shard,
                                 int64_t count) {
  return fmt::format("{}.data-{:05}-of-{:05}", prefix.string(), shard, count);
}

}  // namespace moesaic::vmoe_checkpoint
