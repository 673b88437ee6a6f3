// SPDX-License-Identifier: Apache-2.0
// Builds V-MoE checkpoints by hand, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/support.h"
#include "import/vmoe/files/checkpoint.h"
#include "import/vmoe/files/message_pack.h"

namespace moesaic::vmoe_test {

using message_pack::Output;
using Bounds = std::vector<uint64_t>;  // start and stop of every axis in turn

struct Chunk {
  Bounds box;
  uint64_t shard = 0;
};

inline std::string box_body(const Bounds& box) {
  Output out;
  out.array(box.size() / 2);
  for (std::size_t a = 0; a < box.size(); a += 2) {
    Output axis;
    out.binary(axis.array(3).natural(box[a]).natural(box[a + 1]).nil().text());
  }
  return out.text();
}

inline std::string leaf_body(const std::vector<uint64_t>& shape, std::string_view dtype,
                             const std::vector<Chunk>& chunks) {
  Output header;
  header.array(4).array(shape.size());
  for (const uint64_t n : shape) header.natural(n);
  header.string(dtype).boolean(false).map(0);
  Output out;
  out.array(3).binary(header.text()).array(chunks.size());
  for (const Chunk& chunk : chunks) out.binary(box_body(chunk.box));
  out.array(chunks.size());
  for (const Chunk& chunk : chunks) out.natural(chunk.shard);
  return out.text();
}

/// A leaf of the index under its key.
inline std::string leaf(std::string_view key, const std::vector<uint64_t>& shape,
                        std::string_view dtype, const std::vector<Chunk>& chunks, int type = 8) {
  Output out;
  return out.string(key).extension(type, leaf_body(shape, dtype, chunks)).text();
}

/// `items`, each with its key, as one map under a key.
inline std::string branch(std::string_view key, const std::vector<std::string>& items) {
  Output out;
  std::string text = out.string(key).map(items.size()).text();
  for (const std::string& item : items) text += item;
  return text;
}

inline std::string index_file(uint64_t shards, const std::vector<std::string>& items,
                              std::string_view version = "20220622") {
  Output start, end;
  start.map(version.empty() ? 2 : 3).string("shard_count").natural(shards);
  if (!version.empty()) end.string("version").string(version);
  return start.text() + branch("index", items) + end.text();
}

inline std::string piece(std::string_view dtype, uint64_t count, std::string_view raw,
                         int type = 1) {
  Output body, out;
  body.array(3).array(1).natural(count).string(dtype).binary(raw);
  return out.extension(type, body.text()).text();
}

inline std::string chunk(const std::vector<std::string>& pieces, const Bounds& box, int type = 6) {
  Output start, place;
  std::string text = start.array(2).array(pieces.size()).text();
  for (const std::string& one : pieces) text += one;
  return text + place.extension(type, box_body(box)).text();
}

/// An array number with its chunks.
inline std::string array(std::string_view number, const std::vector<std::string>& chunks) {
  Output start;
  std::string text = start.string(number).array(chunks.size()).text();
  for (const std::string& one : chunks) text += one;
  return text;
}

inline std::string shard_file(const std::vector<std::string>& arrays) {
  Output start;
  start.map(1 + arrays.size()).string("__msgpack_array_chunk_a87ca2__").boolean(true);
  std::string text = start.text();
  for (const std::string& one : arrays) text += one;
  return text;
}

/// "a/x", int16 [2, 3], values "AABBCCDDEEFF" in two chunks; "b", uint8 scalar, value "s".
struct Parts {
  std::vector<uint64_t> shape = {2, 3};
  std::string dtype = "int16";
  std::vector<Chunk> chunks = {{{0, 2, 0, 1}, 1}, {{0, 2, 1, 3}, 0}};
  std::string index;  // in place of the one made of the above
  std::vector<std::string> shard_0 = {array("0", {right_chunk()}), array("1", {scalar_chunk()})};
  std::vector<std::string> shard_1 = {array("0", {left_chunk()})};

  static std::string left_chunk() { return chunk({piece("int16", 2, "AADD")}, {0, 2, 0, 1}); }
  static std::string right_chunk() {
    return chunk({piece("int16", 3, "BBCCEE"), piece("int16", 1, "FF")}, {0, 2, 1, 3});
  }
  static std::string scalar_chunk() { return chunk({piece("uint8", 1, "s")}, {}); }

  std::string index_text() const {
    if (!index.empty()) return index;
    return index_file(
        2, {leaf("b", {}, "uint8", {{{}, 0}}), branch("a", {leaf("x", shape, dtype, chunks)})});
  }
  void put(const std::filesystem::path& prefix) const {
    test::put(prefix.string() + ".index", index_text());
    test::put(prefix.string() + ".data-00000-of-00002", shard_file(shard_0));
    test::put(prefix.string() + ".data-00001-of-00002", shard_file(shard_1));
  }
};

inline std::string read_array(const vmoe_checkpoint::Reader& reader,
                              const vmoe_checkpoint::Entry& entry) {
  std::string bytes(vmoe_checkpoint::byte_count(entry), '?');
  reader.read(entry, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// Every array's bytes by name.
inline std::map<std::string, std::string> read_all(const std::filesystem::path& prefix) {
  const vmoe_checkpoint::Reader reader(prefix);
  std::map<std::string, std::string> all;
  for (const auto& entry : reader.entries()) all[entry.name] = read_array(reader, entry);
  return all;
}

}  // namespace moesaic::vmoe_test
