// SPDX-License-Identifier: Apache-2.0
// Unpacks archives from the web; their content is untrusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace moesaic {

struct UnpackLimits {
  int64_t bytes = int64_t{1} << 40;    ///< Max total size of the unpacked files, in bytes.
  int64_t entries = int64_t{1} << 24;  ///< Max number of entries.
};

/// Unpacks a tar archive (uncompressed, gzip, bzip2 or xz) into `folder`, which must exist, and
/// returns the relative paths of its files, sorted. Only directories and regular files are
/// accepted. Throws Error (failure) with archive and entry for links, devices, absolute paths,
/// "..", duplicate names and whatever exceeds `limits`. Modes, owners and times are dropped. After
/// an Error some files may remain in `folder`: pass one that is discarded, e.g. of a
/// StagedDirectory.
std::vector<std::string> unpack_archive(const std::filesystem::path& archive,
                                        const std::filesystem::path& folder,
                                        const UnpackLimits& limits = {});

}  // namespace moesaic
