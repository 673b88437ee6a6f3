// SPDX-License-Identifier: Apache-2.0
// A stand-in for embedded texts: random numbers of the same form. They are no language.
#pragma once

#include <cstdint>
#include <filesystem>

namespace moesaic::testing {

struct StandInEmbeddings {
  int64_t count = 2000, width = 768;
  uint64_t seed = 1;
};

/// Writes what tools/python/make_stand_in_embeddings.py describes, with three clusters for
/// languages: one linear rule for the labels of each, none for all of them.
void write_stand_in_embeddings(const std::filesystem::path& file, const StandInEmbeddings& options);

/// Writes folder/stand-in.json, the description of folder/stand-in.safetensors, and that file.
/// Returns the description's path.
std::filesystem::path write_stand_in_dataset(const std::filesystem::path& folder,
                                             const StandInEmbeddings& options);

}  // namespace moesaic::testing
