// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/data/catalog.h"

namespace moesaic {

struct FetchOptions {
  bool progress = true;  ///< draw a progress bar on standard error
};

struct FetchResult {
  std::filesystem::path folder;  ///< holds every file, verified
  std::vector<std::string>
      fetched;  ///< names of the files that were downloaded; empty if all were there already
};

/// Downloads the files of datasets/<name>.json (of a subset: its base's) to fetch_folder(), unless
/// a verified copy is found. Each file comes as <file>.gz.part, is resumed where an earlier try
/// stopped, compared with the description by the SHA-256 of its unpacked bytes, and only then
/// renamed. An archive comes in the same way, is compared by its own SHA-256 or MD5, unpacked
/// beside its place and moved there whole, with a list of the files' SHA-256 (kHashList); a folder
/// whose files nobody has verified is replaced. URLs are tried in order. Throws Error: usage for an
/// unknown name, failure with the URL and the reason of every try.
FetchResult fetch_dataset(std::string_view name, const FetchOptions& options = {});
FetchResult fetch_dataset(const DatasetSpec& spec, const FetchOptions& options = {});

}  // namespace moesaic
