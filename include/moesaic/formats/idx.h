// SPDX-License-Identifier: Apache-2.0
// The IDX format of MNIST and similar datasets: two zero bytes, a type code, the rank, big-endian
// sizes, values. Only unsigned bytes (type code 8) are supported.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/base/filesystem.h"

namespace moesaic::idx {

/// An array of bytes.
struct Array {
  std::vector<int64_t> shape;   ///< Sizes of the axes, rank 1 to 4.
  std::vector<uint8_t> values;  ///< Values in row-major order.
};

/// Reads a plain or gzip-compressed file (detected by its content). Throws Error (failure) with the
/// path, the expected and the found value for a wrong magic number or type code, truncated or
/// corrupt data and trailing bytes. Memory is bounded by the actual content, whatever the header
/// claims.
Array read(const fs::path& path);

}  // namespace moesaic::idx
