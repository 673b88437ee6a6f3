// SPDX-License-Identifier: Apache-2.0
// PREFIX.index of a V-MoE checkpoint, and what the index and the shards have in common.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint.h"
#include "message_pack.h"

namespace moesaic::vmoe_checkpoint {

inline constexpr int kPieceType = 1;  // MessagePack extension types.
inline constexpr int kPlaceType = 6;
inline constexpr int kIndexType = 8;
inline constexpr std::string_view kChunksKey = "__msgpack_array_chunk_a87ca2__";
inline constexpr std::string_view kVersion = "20220622";

/// Returns whether `a` precedes `b` in depth-first order of the tree of names with sorted keys.
bool comes_before(std::string_view a, std::string_view b);

/// Parses untrusted bytes. Shapes, and boxes within them, are checked; whether the chunks tile
/// their arrays, and whether the shards can hold that much data, is not.
Index parse_index(std::span<const std::byte> bytes, const std::string& file);

/// Returns the content of the index file; the arrays must be sorted and their names form a tree.
std::string index_text(const Index& index);

/// Reads a chunk's box, as stored in index and shards, into `box`, to the input's end.
void read_box(message_pack::Input input, const Shape& shape, std::vector<int64_t>& box);
std::string box_body(Box box);

std::filesystem::path index_path(const std::filesystem::path& prefix);
std::filesystem::path shard_path(const std::filesystem::path& prefix, int64_t shard, int64_t count);

}  // namespace moesaic::vmoe_checkpoint
