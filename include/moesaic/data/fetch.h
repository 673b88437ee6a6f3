// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/data/catalog.h"

namespace moesaic {

struct FetchOptions {
  bool progress = true;  ///< Draws a progress bar on standard error.
};

struct FetchResult {
  std::filesystem::path folder;  ///< Folder with every file (the base's); empty without.
  std::vector<std::string>
      fetched;  ///< Names of the downloaded files; empty if all were there already.
  /// Names of the files, there or downloaded, of which no hash is described: unlike the others they
  /// are not verified, only compared by what is described.
  std::vector<std::string> unhashed = {};
};

/// Downloads the files of datasets/<name>.json (of a derived dataset: file_specs()) to
/// fetch_folder(), unless a verified copy is found. Each file is downloaded to
/// .<file>.gz.moesaic.part, resumed after an earlier try, compared with the description by the
/// SHA-256 of its uncompressed bytes, and only then renamed. An archive is downloaded the same way,
/// compared by its own SHA-256 or MD5, unpacked to a temporary folder and moved as a whole, with a
/// list of the files' SHA-256 (kHashList). A file or a folder that is there and is not what is
/// described is set aside under a name that is printed, never removed. URLs are tried in order.
/// Throws Error: usage for an unknown name, failure with the URL and the reason of every try.
FetchResult fetch_dataset(std::string_view name, const FetchOptions& options = {});
FetchResult fetch_dataset(const DatasetSpec& spec, const FetchOptions& options = {});

}  // namespace moesaic
