// SPDX-License-Identifier: Apache-2.0
// Binary batches of CIFAR-10 and CIFAR-100: records of one or two label bytes and 3 x 32 x 32
// pixels (planes in the order red, green, blue), without a header.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/base/filesystem.h"

namespace moesaic::cifar {

inline constexpr int64_t kChannels = 3, kHeight = 32, kWidth = 32;

/// Labels of a record. CIFAR-100 stores the coarse label before the fine one.
struct Layout {
  int64_t num_label_bytes = 1;
  int64_t label_offset = 0;  ///< Offset of the label to read, 0-based.
};

/// Images of CIFAR with their labels.
struct Records {
  std::vector<uint8_t> labels;  ///< Labels, [N].
  std::vector<uint8_t> pixels;  ///< Pixels, [N, 3, 32, 32].
};

/// Appends the records of a plain or gzip-compressed file whose unpacked size is `bytes`. Throws
/// Error (failure) with the path if the size differs or the file ends within a record. Memory is
/// bounded by `bytes`.
void read(const fs::path& path, int64_t bytes, const Layout& layout, Records& records);

}  // namespace moesaic::cifar
