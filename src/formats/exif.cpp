// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "decoders.h"

namespace moesaic {
namespace {

using Span = std::span<const uint8_t>;
using Bytes = std::vector<uint8_t>;

constexpr std::string_view kExif("Exif\0\0", 6);
constexpr std::string_view kXap("http://ns.adobe.com/xap/1.0/\0", 29);
/// Max number of bytes that are looked at of EXIF or XMP: Pillow's limit of a PNG's text.
constexpr size_t kMaxBytes = size_t{1} << 20;

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

/// Returns `count` bytes at `at`, or those that are there.
Span part(Span bytes, size_t at, size_t count) {
  const Span rest = after(bytes, at);
  return rest.first(std::min(count, rest.size()));
}

Bytes copy(Span bytes) {
  const Span some = part(bytes, 0, kMaxBytes);
  return {some.begin(), some.end()};
}

/// What a file says of its image, as it stands there.
struct Metadata {
  std::optional<Bytes> exif, xmp;
};

Metadata in_jpeg(Span file) {
  constexpr uint8_t kApp1 = 0xe1, kStartOfScan = 0xda;
  Metadata found;
  for (Span rest = after(file, 2); rest.size() >= 4 && rest[0] == 0xff;) {
    if (rest[1] == 0xff) {  // Fill bytes precede a marker.
      rest = rest.subspan(1);
      continue;
    }
    if (rest[1] == kStartOfScan) break;
    const size_t length = number(rest, 2, 2);
    const Span segment = part(rest, 4, length < 2 ? 0 : length - 2);
    if (rest[1] == kApp1 && begins(segment, kExif) && !found.exif) found.exif = copy(segment);
    if (rest[1] == kApp1 && begins(segment, kXap)) found.xmp = copy(after(segment, kXap.size()));
    rest = after(rest, 2 + length);
  }
  return found;
}

/// Returns what zlib's format holds; nothing where it is corrupt or longer than kMaxBytes.
Bytes inflated(Span packed) {
  Bytes text(kMaxBytes);
  uLongf size = text.size();
  if (uncompress(text.data(), &size, packed.data(), packed.size()) != Z_OK) return {};
  text.resize(size);
  return text;
}

Span after_zero(Span bytes) {
  const auto zero = std::find(bytes.begin(), bytes.end(), uint8_t{0});
  return after(bytes, static_cast<size_t>(zero - bytes.begin()) + 1);
}

/// Puts into `found` the text of a PNG's chunk that begins with its kind, where it is called
/// `keyword`: of several the last one counts, as for Pillow.
void take_text(Span kind, Span data, std::string_view keyword, std::optional<Bytes>& found) {
  if (!begins(data, keyword) || number(data, keyword.size(), 1) != 0) return;
  Span text = after(data, keyword.size() + 1);
  bool packed = begins(kind, "zTXt");
  if (begins(kind, "iTXt")) {
    packed = number(text, 0, 1) == 1;
    text = after_zero(after_zero(after(text, 2)));  // language, translated keyword
  } else if (packed) {
    text = after(text, 1);
  }
  found = packed ? inflated(text) : copy(text);
}

/// Returns the bytes of ImageMagick's raw profile: a line each for nothing, its kind and its
/// length, then hexadecimal digits.
Bytes unhexed(const Bytes& text) {
  auto at = text.begin();
  for (int line = 0; line < 3; ++line) {
    at = std::find(at, text.end(), uint8_t{'\n'});
    if (at == text.end()) return {};
    ++at;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  Bytes bytes;
  bool half = false;
  for (; at != text.end(); ++at) {
    const size_t digit = kDigits.find(static_cast<char>(*at >= 'A' && *at <= 'F' ? *at + 32 : *at));
    if (digit == std::string_view::npos) continue;
    if (half) bytes.back() = static_cast<uint8_t>(bytes.back() << 4 | digit);
    if (!half) bytes.push_back(static_cast<uint8_t>(digit));
    half = !half;
  }
  return bytes;
}

Metadata in_png(Span file) {
  constexpr size_t kSignature = 8, kAround = 12;
  Metadata found;
  std::optional<Bytes> raw;
  for (Span rest = after(file, kSignature); rest.size() > kAround;) {
    const size_t length = number(rest, 0, 4);
    const Span kind = part(rest, 4, 4), data = part(rest, 8, length);
    if (begins(kind, "eXIf")) found.exif = copy(data);
    if (begins(kind, "tEXt") || begins(kind, "zTXt") || begins(kind, "iTXt")) {
      take_text(kind, data, "Raw profile type exif", raw);
      take_text(kind, data, "XML:com.adobe.xmp", found.xmp);
    }
    rest = after(rest, kAround + length);
  }
  if (raw && !found.exif) found.exif = unhexed(*raw);
  return found;
}

/// EXIF and XMP count where the file's header announces them, as for libwebp.
Metadata in_webp(Span file) {
  constexpr size_t kHead = 12, kFlags = 20;
  constexpr uint32_t kHasExif = 8, kHasXmp = 4;
  Metadata found;
  if (!begins(after(file, kHead), "VP8X")) return found;
  const uint32_t flags = number(file, kFlags, 1);
  for (Span rest = after(file, kHead); rest.size() >= 8;) {
    const size_t length = number(rest, 4, 4, /*big_endian=*/false);
    const Span data = part(rest, 8, length);
    if ((flags & kHasExif) != 0 && begins(rest, "EXIF") && !found.exif) found.exif = copy(data);
    if ((flags & kHasXmp) != 0 && begins(rest, "XMP ") && !found.xmp) found.xmp = copy(data);
    rest = after(rest, 8 + length + length % 2);
  }
  return found;
}

/// Bytes of a TIFF's integer by its type, 0 for what is none: of 3 SHORT, 4 LONG, 6 SBYTE, 8
/// SSHORT, 9 SLONG and 13 IFD.
constexpr std::array<size_t, 17> kBytesOfType = {0, 0, 0, 2, 4, 0, 1, 0, 2, 4, 0, 0, 0, 4};

/// Returns the orientation in a TIFF's first directory, 0 where it is no integer; nothing where
/// there is none.
std::optional<uint32_t> tiff_orientation(Span tiff) {
  constexpr size_t kEntryBytes = 12;
  constexpr uint32_t kOrientation = 0x0112;
  while (begins(tiff, kExif)) tiff = tiff.subspan(kExif.size());  // Some write it before a PNG's.
  using namespace std::string_view_literals;
  // Pillow takes the number 42 in either byte order.
  const bool big = begins(tiff, "MM\0*"sv) || begins(tiff, "MM*\0"sv);
  if (!big && !begins(tiff, "II*\0"sv) && !begins(tiff, "II\0*"sv)) return {};
  const size_t directory = number(tiff, 4, 4, big), entries = number(tiff, directory, 2, big);
  for (size_t i = 0; i < entries; ++i) {  // The first of a known type counts.
    const size_t at = directory + 2 + i * kEntryBytes;
    const uint32_t count = number(tiff, at + 4, 4, big);
    if (number(tiff, at, 2, big) != kOrientation || count == 0) continue;
    const uint32_t type = number(tiff, at + 2, 2, big);
    if ((type < 1 || type > 13) && type != 16) continue;  // Pillow reads no others.
    const size_t bytes = kBytesOfType[type];
    const bool inside = uint64_t{bytes} * count <= 4;
    return number(tiff, inside ? at + 8 : number(tiff, at + 8, 4, big), bytes, big);
  }
  return {};
}

std::optional<uint32_t> xmp_orientation(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = xmp.find(kName); at != std::string_view::npos; at = xmp.find(kName, at + 1)) {
    const std::string_view rest = xmp.substr(at + kName.size());
    const size_t before = rest.starts_with("=\"") ? 2 : rest.starts_with('>') ? 1 : 0;
    if (before == 0 || rest.size() == before) continue;
    if (rest[before] >= '0' && rest[before] <= '9') return rest[before] - '0';
  }
  return {};
}

}  // namespace

int exif_orientation(Span file) {
  const Metadata found = begins(file, "\x89PNG") ? in_png(file)
                         : begins(file, "RIFF")  ? in_webp(file)
                                                 : in_jpeg(file);
  std::optional<uint32_t> value;
  if (found.exif) value = tiff_orientation(*found.exif);
  if (!value && found.xmp) {
    value = xmp_orientation({reinterpret_cast<const char*>(found.xmp->data()), found.xmp->size()});
  }
  return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
}

}  // namespace moesaic
