// SPDX-License-Identifier: Apache-2.0
// Shards from the web, each fetched on its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "moesaic/data/catalog.h"
#include "shards.h"

namespace moesaic {

/// Downloads a shard from the first of spec.urls that has it, resuming what an earlier try left,
/// compares it with its description and puts it in its place. Processes that want the same shard
/// wait for one of them. Throws Error (failure) with the URL and the reason of every try.
void fetch_shard(const DatasetSpec& spec, const PlacedShard& shard, bool progress);

/// Downloads the file with the names of classes to `path` in the same way.
void fetch_class_names(const DatasetSpec& spec, const std::string& name,
                       const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace moesaic
