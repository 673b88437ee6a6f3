// SPDX-License-Identifier: Apache-2.0
// Unpacking of archives from the web: nothing in them is believed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace moesaic {

struct UnpackLimits {
  int64_t bytes = int64_t{1} << 40;  ///< of all files together, unpacked
  int64_t entries = int64_t{1} << 24;
};

/// Unpacks a tar archive, compressed by gzip, bzip2 or xz or not at all, into `folder`, which must
/// exist, and gives the files' names below it, sorted. Only folders and plain files are taken: a
/// link, a device, an absolute path, a "..", a name that is there twice, and whatever goes beyond
/// `limits` throw Error(failure) that names archive and entry. Modes, owners and times are not
/// kept. On an Error some files may lie in `folder`: give it one that is thrown away, such as a
/// StagedDirectory's.
std::vector<std::string> unpack_archive(const std::filesystem::path& archive,
                                        const std::filesystem::path& folder,
                                        const UnpackLimits& limits = {});

}  // namespace moesaic
