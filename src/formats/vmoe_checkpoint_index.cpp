// SPDX-License-Identifier: Apache-2.0
#include "vmoe_checkpoint_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "moesaic/base/error.h"

namespace moesaic::vmoe_checkpoint {
namespace {

using message_pack::Input;
using message_pack::Kind;
using message_pack::Output;

int64_t read_size(Input& input, std::string_view what) {
  const uint64_t start = input.position();
  const uint64_t size = input.natural(what);
  if (size > INT64_MAX) input.refuse(start, "{} {} is too large", what, size);
  return static_cast<int64_t>(size);
}

// Parses one tree of keys; each leaf adds a name and a layout.
class IndexParser {
 public:
  explicit IndexParser(Index& index) : index_(index) {}

  void tree(Input& input, const std::string& parent, std::size_t depth) {
    if (depth > kMaxDepth) {
      input.refuse(input.position(), "nested deeper than {} maps", kMaxDepth);
    }
    const uint64_t start = input.position();
    const uint64_t count = input.map("index");
    std::vector<std::string_view> keys;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t place = input.position();
      keys.push_back(input.string("a key"));
      check_key(input, place, keys.back());
      const std::string name =
          depth == 1 ? std::string(keys.back()) : fmt::format("{}/{}", parent, keys.back());
      if (name.size() > kMaxNameBytes) {
        input.refuse(place, "name {} is longer than {} bytes", printable(name), kMaxNameBytes);
      }
      if (input.peek("an array or a map") == Kind::map) {
        tree(input, name, depth + 1);
      } else {
        leaf(input, name);
      }
    }
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) input.refuse(start, "key {} stands twice in a map", printable(*twice));
  }

 private:
  void check_key(const Input& input, uint64_t place, std::string_view key) {
    if (find_invalid_utf8(key)) input.refuse(place, "key {} is not valid UTF-8", printable(key));
    if (key.find('/') != key.npos) input.refuse(place, "key {} has a '/'", printable(key));
  }

  void leaf(Input& input, const std::string& name) {
    const uint64_t start = input.position();
    name_bytes_ += name.size();
    if (name_bytes_ > kMaxIndexBytes) input.refuse(start, "the names are too long");
    Input here = input;
    here.set_array(name);
    const message_pack::Extension found = here.extension("an index entry");
    if (found.type != kIndexType) {
      here.refuse(start, "unknown extension type {}, expected {}", found.type, kIndexType);
    }
    Input body = here.inside(found.body);
    body.array_of(3, "an index entry");
    Entry entry = header(body, name);
    Layout layout = chunks(body, entry.shape);
    body.end("the index entry");
    layout.sort();
    index_.entries.push_back(std::move(entry));
    index_.layouts.push_back(std::move(layout));
    here.set_array({});
    input = here;
  }

  Entry header(Input& body, const std::string& name) {
    const auto bytes = body.binary("shape and dtype");
    Input in = body.inside(bytes);
    in.array_of(4, "shape and dtype");
    Entry entry{.name = name, .dtype = {}, .shape = {}};
    const uint64_t shape_start = in.position();
    const uint64_t rank = in.array("the shape");
    if (rank > kMaxRank)
      in.refuse(shape_start, "rank {}, at most {} are supported", rank, kMaxRank);
    for (uint64_t a = 0; a < rank; ++a) entry.shape.push_back(read_size(in, "a dimension"));
    const uint64_t dtype_start = in.position();
    entry.dtype = in.string("the dtype");
    const auto element = find_dtype_size(entry.dtype);
    if (!element) in.refuse(dtype_start, "unknown dtype {}", printable(entry.dtype));
    if (!find_byte_count(entry.shape, *element)) {
      in.refuse(shape_start, "shape [{}] is larger than any file", fmt::join(entry.shape, ", "));
    }
    in.boolean("the weak flag");
    if (in.map("the named shape") != 0) in.refuse(in.position(), "the named shape must be empty");
    in.end("shape and dtype");
    return entry;
  }

  Layout chunks(Input& body, const Shape& shape) {
    Layout layout{.rank = shape.size(), .bounds = {}, .shards = {}, .offsets = {}};
    const uint64_t count = body.array("the chunks");
    std::vector<int64_t> box;
    for (uint64_t i = 0; i < count; ++i) {
      Input place = body.inside(body.binary("a chunk's place"));
      read_box(place, shape, box);
      place.end("a chunk's place");
      layout.add(box, 0);
    }
    body.array_of(count, "the shards of the chunks");
    for (uint32_t& shard : layout.shards) {
      const uint64_t start = body.position();
      const uint64_t number = body.natural("a shard");
      if (number >= static_cast<uint64_t>(kMaxShards)) {
        body.refuse(start, "unknown shard {}", number);
      }
      shard = static_cast<uint32_t>(number);
    }
    return layout;
  }

  Index& index_;
  uint64_t name_bytes_ = 0;
};

void sort_by_number(Index& index) {
  std::vector<std::size_t> order(index.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return comes_before(index.entries[a].name, index.entries[b].name);
  });
  std::vector<Entry> entries;
  std::vector<Layout> layouts;
  for (const std::size_t i : order) {
    entries.push_back(std::move(index.entries[i]));
    layouts.push_back(std::move(index.layouts[i]));
  }
  index.entries = std::move(entries);
  index.layouts = std::move(layouts);
}

void check_shards(const Index& index, const std::string& file) {
  for (std::size_t i = 0; i < index.entries.size(); ++i) {
    for (const uint32_t shard : index.layouts[i].shards) {
      if (shard < index.shard_count) continue;
      fail("{}: array {}: unknown shard {}, there are {}", file, printable(index.entries[i].name),
           shard, index.shard_count);
    }
  }
}

std::string entry_body(const Entry& entry, const Layout& layout) {
  Output header;
  header.array(4).array(entry.shape.size());
  for (const int64_t n : entry.shape) header.natural(static_cast<uint64_t>(n));
  header.string(entry.dtype).boolean(false).map(0);
  Output body;
  body.array(3).binary(header.text()).array(layout.size());
  for (std::size_t i = 0; i < layout.size(); ++i) body.binary(box_body(layout.box(i)));
  body.array(layout.size());
  for (const uint32_t shard : layout.shards) body.natural(shard);
  return body.text();
}

// Returns the key of entry `i` in the map that is `prefix` bytes into its name.
std::string_view key_at(const Index& index, std::size_t i, std::size_t prefix) {
  const std::string_view rest = std::string_view(index.entries[i].name).substr(prefix);
  return rest.substr(0, rest.find('/'));
}

// Writes the map that holds entries [first, last), which agree in their first `prefix` bytes.
void write_tree(Output& out, const Index& index, std::size_t first, std::size_t last,
                std::size_t prefix) {
  std::vector<std::size_t> starts;
  for (std::size_t i = first; i < last; ++i) {
    if (i == first || key_at(index, i, prefix) != key_at(index, i - 1, prefix)) starts.push_back(i);
  }
  out.map(starts.size());
  starts.push_back(last);
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
    const std::size_t i = starts[s];
    const std::string_view key = key_at(index, i, prefix);
    out.string(key);
    if (prefix + key.size() == index.entries[i].name.size()) {
      out.extension(kIndexType, entry_body(index.entries[i], index.layouts[i]));
    } else {
      write_tree(out, index, i, starts[s + 1], prefix + key.size() + 1);
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
      index.shard_count = read_size(input, "shard_count");
      if (index.shard_count < 1 || index.shard_count > kMaxShards) {
        input.refuse(start, "shard_count must be 1 to {}, found {}", kMaxShards, index.shard_count);
      }
    } else if (key == "index" && !has_tree) {
      IndexParser(index).tree(input, "", 1);
      has_tree = true;
    } else if (key == "version" && !has_version) {
      index.version = input.string("version");
      has_version = true;
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
  check_shards(index, file);
  sort_by_number(index);
  return index;
}

std::string index_text(const Index& index) {
  Output out;
  out.map(3).string("shard_count").natural(static_cast<uint64_t>(index.shard_count));
  out.string("index");
  write_tree(out, index, 0, index.entries.size(), 0);
  out.string("version").string(kVersion);
  return out.text();
}

void read_box(Input& input, const Shape& shape, std::vector<int64_t>& box) {
  box.clear();
  input.array_of(shape.size(), "a chunk's axes");
  for (const int64_t size : shape) {
    Input axis = input.inside(input.binary("an axis"));
    axis.array_of(3, "an axis");
    const uint64_t place = axis.position();
    const int64_t start = read_size(axis, "a start"), stop = read_size(axis, "a stop");
    if (start > stop || stop > size) {
      axis.refuse(place, "a chunk takes {}:{} of an axis of size {}", start, stop, size);
    }
    axis.nil("the step");
    axis.end("an axis");
    box.insert(box.end(), {start, stop});
  }
}

std::string box_body(Box box) {
  Output out;
  out.array(box.size() / 2);
  for (std::size_t a = 0; a < box.size(); a += 2) {
    Output axis;
    axis.array(3).natural(static_cast<uint64_t>(box[a]));
    axis.natural(static_cast<uint64_t>(box[a + 1])).nil();
    out.binary(axis.text());
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
