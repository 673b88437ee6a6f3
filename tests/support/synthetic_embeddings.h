// SPDX-License-Identifier: Apache-2.0
// Random numbers in the form of embedded texts. They are no language.
#pragma once

#include <cstdint>
#include <filesystem>

namespace moesaic::testing {

struct SyntheticEmbeddings {
  int64_t count = 2000, width = 768;
  uint64_t seed = 1;
};

/// Writes what tools/python/make_synthetic_embeddings.py describes, with three clusters for
/// languages: one linear rule for the labels of each, none for all of them.
void write_synthetic_embeddings(const std::filesystem::path& file,
                                const SyntheticEmbeddings& options);

/// Writes folder/synthetic.json, the description of folder/synthetic.safetensors, and that file.
/// Returns the description's path.
std::filesystem::path write_synthetic_dataset(const std::filesystem::path& folder,
                                              const SyntheticEmbeddings& options);

}  // namespace moesaic::testing
