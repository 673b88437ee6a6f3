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

struct Header {
  std::vector<int64_t> shape;
  std::optional<uint64_t> file_bytes;  // Size of header and values; nullopt on overflow.
};

void read_exactly(UnpackedReader& reader, std::span<uint8_t> out, const std::string& name) {
  const std::size_t got = reader.read(out);
  if (got < out.size()) {
    fail("{}: truncated IDX header: expected {} more bytes, found {}", name, out.size(), got);
  }
}

Header read_header(UnpackedReader& reader, const std::string& name) {
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
  Header header;
  for (int i = 0; i < magic[3]; ++i) {
    std::array<uint8_t, 4> b{};
    read_exactly(reader, b, name);
    const uint32_t size = uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
    header.shape.push_back(size);
  }
  const auto count = checked_product(1, header.shape);
  if (count) header.file_bytes = checked_add(*count, 4 + 4 * header.shape.size());
  return header;
}

uint64_t count_rest(UnpackedReader& reader) {
  std::vector<uint8_t> scratch(kPiece);
  uint64_t total = 0;
  for (;;) {
    const std::size_t n = reader.read(scratch);
    total += n;
    if (n < scratch.size()) return total;
  }
}

}  // namespace

Array read(const fs::path& path) {
  const std::string name = path.string();
  UnpackedReader reader(path);
  Header header = read_header(reader, name);
  const std::string shape = shape_text(header.shape);
  if (!header.file_bytes) fail("{}: IDX shape {} is larger than any file", name, shape);
  const uint64_t expected = *header.file_bytes;
  // Rejects the file before anything of that size is allocated.
  if (expected > reader.max_unpacked_size()) {
    fail("{}: IDX shape {} makes {} bytes expected, found {}{}", name, shape, expected,
         reader.file_size(), reader.is_compressed() ? " compressed ones" : "");
  }
  const uint64_t header_bytes = 4 + 4 * header.shape.size();
  Array array{std::move(header.shape), reader.read_up_to(expected - header_bytes)};
  // Reading to the end also verifies the checksum of a compressed file.
  const uint64_t found = header_bytes + array.values.size() + count_rest(reader);
  if (found != expected) {
    fail("{}: IDX shape {} makes {} bytes expected, found {}{}", name, shape, expected, found,
         reader.is_compressed() ? " when unpacked" : "");
  }
  return array;
}

}  // namespace moesaic::idx
