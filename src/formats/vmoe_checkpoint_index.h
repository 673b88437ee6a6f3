// SPDX-License-Identifier: Apache-2.0
// PREFIX.index of a V-MoE checkpoint, and what index and shards have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "message_pack.h"
#include "moesaic/formats/vmoe_checkpoint.h"
#include "vmoe_checkpoint_layout.h"

namespace moesaic::vmoe_checkpoint {

inline constexpr int kArrayType = 1;  // extension types
inline constexpr int kPlaceType = 6;
inline constexpr int kIndexType = 8;
inline constexpr std::string_view kChunksKey = "__msgpack_array_chunk_a87ca2__";
inline constexpr std::string_view kVersion = "20220622";

struct Index {
  int64_t shard_count = 0;
  std::string version;
  std::vector<Entry> entries;   // by array number
  std::vector<Layout> layouts;  // likewise, sorted
};

/// Whether `a` comes before `b` when the tree of names is walked depth first with sorted keys.
bool comes_before(std::string_view a, std::string_view b);

/// Parses untrusted bytes. Shapes, and boxes within them, are checked; whether chunks tile their
/// arrays, and whether so much data can be there, is not.
Index parse_index(std::span<const std::byte> bytes, const std::string& file);

/// The index file of these arrays; they are in order, their names form a tree.
std::string index_text(const Index& index);

/// A chunk's place, as it stands in index and shards. `box` is overwritten.
void read_box(message_pack::Input& input, const Shape& shape, std::vector<int64_t>& box);
std::string box_body(Box box);

std::filesystem::path index_path(const std::filesystem::path& prefix);
std::filesystem::path shard_path(const std::filesystem::path& prefix, int64_t shard, int64_t count);

}  // namespace moesaic::vmoe_checkpoint
