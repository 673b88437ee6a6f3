// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace moesaic {

/// What a run, a checkpoint or a .safetensors file holds: {"path", "kind", "parameters", "bytes",
/// "tensors": [{"name", "dtype", "shape"}]} and, for a checkpoint, "model", "data", "classes",
/// "state" and per MoE layer the experts that it still has. The same of a checkpoint of
/// google-research/vmoe, which its prefix names, with "shards" and "version". Reads headers only,
/// and checks a checkpoint's files against its manifest. Throws Error for what it cannot read.
nlohmann::ordered_json inspect(const std::filesystem::path& path);

/// How two of them differ: {"only_in_first", "only_in_second", "different_shape", "changed":
/// [{"name", "relative_change"}], "equal", "config": [{"key", "first", "second"}]}, where null
/// is a key that is absent; where it is the list of experts that pruning left, and absent means
/// that there are all, an item also has "absent": "all". A checkpoint of google-research/vmoe has its own names and dtypes;
/// beside one, a network here is compared under those names, as float32. The relative change of a
/// tensor is ||b - a|| / ||a||.
nlohmann::ordered_json inspect_difference(const std::filesystem::path& first,
                                          const std::filesystem::path& second);

}  // namespace moesaic
