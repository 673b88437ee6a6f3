// SPDX-License-Identifier: Apache-2.0
// The binary batches of CIFAR-10 and CIFAR-100: records of one or two label bytes and 32 x 32
// pixels, red plane first, without any header.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace moesaic::cifar {

inline constexpr int64_t kChannels = 3, kHeight = 32, kWidth = 32;

/// CIFAR-100 has the coarse label before the fine one.
struct Layout {
  int64_t label_bytes = 1;
  int64_t label_at = 0;  ///< the one that is read, from 0
};

struct Records {
  std::vector<uint8_t> labels;  ///< [N]
  std::vector<uint8_t> pixels;  ///< [N, 3, 32, 32]
};

/// Appends the records of a plain or gzip-compressed file of `bytes` unpacked bytes. Throws
/// Error(failure) with the path where its size is another one or ends within a record; memory is
/// bounded by `bytes`.
void read(const std::filesystem::path& path, int64_t bytes, const Layout& layout, Records& records);

}  // namespace moesaic::cifar
