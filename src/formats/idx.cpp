// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/idx.h"

#include <array>
#include <optional>

#include "moesaic/base/checked_math.h"
#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
#include "moesaic/formats/gzip.h"

namespace moesaic::idx {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kMaxRank = 4;
constexpr std::size_t kPiece = std::size_t{1} << 20;

void read_exactly(UnpackedReader& reader, std::span<uint8_t> out, const std::string& name) {
  const std::size_t got = reader.read(out);
  if (got < out.size()) {
    fail("{}: truncated IDX header: expected {} more bytes, found {}", name, out.size(), got);
  }
}

std::vector<int64_t> read_shape(UnpackedReader& reader, const std::string& name) {
  std::array<uint8_t, 4> magic{};
  read_exactly(reader, magic, name);
  if (magic[0] != 0 || magic[1] != 0) {
    fail("{}: not an IDX file: expected it to start with 00 00, found {:02x} {:02x}", name,
         magic[0], magic[1]);
  }
  if (magic[2] != kUnsignedByte) {
    fail("{}: expected IDX type code 08 (unsigned byte), found {:02x}", name, magic[2]);
  }
  if (magic[3] < 1 || magic[3] > kMaxRank) {
    fail("{}: expected an IDX rank from 1 to {}, found {}", name, kMaxRank, magic[3]);
  }
  std::vector<int64_t> shape;
  for (int i = 0; i < magic[3]; ++i) {
    std::array<uint8_t, 4> b{};
    read_exactly(reader, b, name);
    const uint32_t size = uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
    shape.push_back(size);
  }
  return shape;
}

}  // namespace

Array read(const fs::path& path) {
  const std::string name = path.string();
  UnpackedReader reader(path);
  Array array{read_shape(reader, name), {}};
  const std::string shape = shape_text(array.shape);
  const uint64_t header_bytes = 4 + 4 * array.shape.size();
  const auto count = checked_product(1, array.shape);
  const auto file_bytes = count ? checked_add(*count, header_bytes) : std::nullopt;
  if (!file_bytes) fail("{}: IDX shape {} is larger than any file", name, shape);
  const uint64_t expected = *file_bytes;
  // Rejects the file before anything of that size is allocated.
  if (expected > reader.max_unpacked_size()) {
    fail("{}: IDX shape {} makes {} bytes expected, found {}{}", name, shape, expected,
         reader.file_size(), reader.is_compressed() ? " compressed ones" : "");
  }
  array.values = reader.read_up_to(expected - header_bytes);
  // Reading to the end also verifies the checksum of a compressed file.
  uint64_t found = header_bytes + array.values.size();
  std::vector<uint8_t> rest(kPiece);
  while (const std::size_t count_read = reader.read(rest)) found += count_read;
  if (found != expected) {
    fail("{}: IDX shape {} makes {} bytes expected, found {}{}", name, shape, expected, found,
         reader.is_compressed() ? " when unpacked" : "");
  }
  return array;
}

}  // namespace moesaic::idx
