// SPDX-License-Identifier: Apache-2.0
#include "exif.h"

#include <algorithm>
#include <string_view>

namespace moesaic {
namespace {

using Span = std::span<const uint8_t>;

bool begins(Span bytes, std::string_view head) {
  return bytes.size() >= head.size() &&
         std::equal(head.begin(), head.end(), bytes.begin(),
                    [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
}

/// Returns the number of `count` bytes at `at`; 0 where the bytes end.
uint32_t number(Span bytes, size_t at, size_t count, bool big_endian = true) {
  if (at > bytes.size() || count > bytes.size() - at) return 0;
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value = value << 8 | bytes[at + (big_endian ? i : count - 1 - i)];
  }
  return value;
}

Span after(Span bytes, size_t count) {
  return bytes.subspan(std::min(count, bytes.size()));
}

/// Returns the TIFF file in the first EXIF segment of a JPEG.
Span tiff_of_jpeg(Span file) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  constexpr uint8_t kApp1 = 0xe1, kStartOfScan = 0xda;
  for (Span rest = after(file, 2); rest.size() >= 4 && rest[0] == 0xff;) {
    if (rest[1] == 0xff) {  // Fill bytes precede a marker.
      rest = rest.subspan(1);
      continue;
    }
    if (rest[1] == kStartOfScan) break;
    if (rest[1] == kApp1 && begins(rest.subspan(4), kExif)) return rest.subspan(4 + kExif.size());
    rest = after(rest, 2 + number(rest, 2, 2));
  }
  return {};
}

/// Returns the TIFF file in the EXIF chunk of a PNG.
Span tiff_of_png(Span file) {
  constexpr size_t kSignature = 8, kAround = 12;
  for (Span rest = after(file, kSignature); rest.size() > kAround;) {
    if (begins(rest.subspan(4), "eXIf")) return rest.subspan(8);
    rest = after(rest, kAround + number(rest, 0, 4));
  }
  return {};
}

}  // namespace

int exif_orientation(Span file) {
  constexpr size_t kEntryBytes = 12;
  constexpr uint32_t kOrientation = 0x0112;
  const Span tiff = begins(file, "\x89PNG") ? tiff_of_png(file) : tiff_of_jpeg(file);
  const bool big = begins(tiff, "MM");
  const size_t directory = number(tiff, 4, 4, big), entries = number(tiff, directory, 2, big);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + i * kEntryBytes;
    if (number(tiff, at, 2, big) != kOrientation) continue;
    const uint32_t value = number(tiff, at + 8, 2, big);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace moesaic
