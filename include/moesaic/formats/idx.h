// SPDX-License-Identifier: Apache-2.0
// IDX, the format of MNIST and its relatives: two zero bytes, a type code, the rank, big-endian
// sizes, values. Only unsigned bytes (type code 8) are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace moesaic::idx {

struct Array {
  std::vector<int64_t> shape;   ///< rank 1 to 4
  std::vector<uint8_t> values;  ///< row-major
};

/// Reads a plain or gzip-compressed file (told by its content). A wrong magic or type code, a
/// truncated or altered file and trailing bytes throw Error(failure) with the path, what was
/// expected and what was found. Memory is bounded by what the file really holds, whatever its
/// header claims.
Array read(const std::filesystem::path& path);

/// SHA-256 of the unpacked bytes, in hex.
std::string content_sha256(const std::filesystem::path& path);

}  // namespace moesaic::idx
