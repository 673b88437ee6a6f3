// SPDX-License-Identifier: Apache-2.0
// Files of a few bytes: IDX and gzip written by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/support.h"
#include "moesaic/base/hash.h"

namespace moesaic::test {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

inline void write_file(const fs::path& path, std::span<const uint8_t> bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

inline void write_file(const fs::path& path, const std::string& text) {
  write_file(path, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

inline Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

inline std::string hash_of(const Bytes& bytes) {
  return sha256_hex(std::as_bytes(std::span(bytes)));
}

inline Bytes idx_bytes(const std::vector<uint32_t>& shape, const Bytes& values) {
  Bytes bytes = {0, 0, 8, static_cast<uint8_t>(shape.size())};
  for (const uint32_t size : shape) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<uint8_t>(size >> shift));
  }
  bytes.insert(bytes.end(), values.begin(), values.end());
  return bytes;
}

/// gzip with one stored block; at most 65535 bytes.
inline Bytes gzip_bytes(const Bytes& content) {
  uint32_t crc = 0xffffffff;
  for (const uint8_t byte : content) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  const auto size = static_cast<uint32_t>(content.size());
  Bytes bytes = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1};
  const auto push = [&](uint32_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(value >> (8 * i)));
  };
  push(size, 2);
  push(~size, 2);
  bytes.insert(bytes.end(), content.begin(), content.end());
  push(~crc, 4);
  push(size, 4);
  return bytes;
}

}  // namespace moesaic::test

namespace moesaic {

using test::Bytes;
using test::write_file;

}  // namespace moesaic
