// SPDX-License-Identifier: Apache-2.0
// Tar archives written by hand, so that they can hold what no tar program would write.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace moesaic::test {

struct TarEntry {
  std::string name;
  std::vector<uint8_t> content = {};
  char type = '\0';  ///< '\0': a folder if the name ends in a slash, else a file
  std::string target = {};
};

/// POSIX ustar.
inline std::vector<uint8_t> tar_bytes(const std::vector<TarEntry>& entries) {
  constexpr size_t kBlock = 512;
  std::vector<uint8_t> bytes;
  for (const TarEntry& entry : entries) {
    char header[kBlock] = {};
    const bool folder = entry.name.ends_with('/');
    std::snprintf(header, 100, "%s", entry.name.c_str());
    std::snprintf(header + 100, 8, "%07o", folder ? 0755 : 0644);
    std::snprintf(header + 124, 12, "%011zo", entry.content.size());
    std::snprintf(header + 136, 12, "%011o", 0);
    header[156] = entry.type != '\0' ? entry.type : folder ? '5' : '0';
    std::snprintf(header + 157, 100, "%s", entry.target.c_str());
    std::memcpy(header + 257,
                "ustar\0"
                "00",
                8);
    std::memset(header + 148, ' ', 8);
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    std::snprintf(header + 148, 8, "%06o", sum);
    bytes.insert(bytes.end(), header, header + kBlock);
    bytes.insert(bytes.end(), entry.content.begin(), entry.content.end());
    bytes.resize((bytes.size() + kBlock - 1) / kBlock * kBlock);
  }
  bytes.resize(bytes.size() + 2 * kBlock);
  return bytes;
}

}  // namespace moesaic::test
