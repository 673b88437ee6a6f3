// SPDX-License-Identifier: Apache-2.0
// JPEG files made in memory.
#pragma once

#include <turbojpeg.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats/bytes.h"

namespace moesaic::test {

/// By row or by column pixels go from black to white.
enum class JpegKind { rgb, grey, ycck, noise, rows, columns };

/// An image of one colour, given in the bytes that the file's pixels have, or of its kind.
inline Bytes jpeg_bytes(int height, int width, JpegKind kind, std::array<uint8_t, 4> colour,
                        int flags = 0) {
  const bool inks = kind == JpegKind::ycck;
  const int channels = inks ? 4 : kind == JpegKind::grey ? 1 : 3;
  const int format = inks ? TJPF_CMYK : kind == JpegKind::grey ? TJPF_GRAY : TJPF_RGB;
  Bytes pixels(static_cast<size_t>(height * width * channels));
  uint32_t noise = 1;
  const auto line = static_cast<size_t>(width * channels);
  for (size_t i = 0; i < pixels.size(); ++i) {
    noise = noise * 1664525 + 1013904223;
    pixels[i] = kind == JpegKind::noise     ? static_cast<uint8_t>(noise >> 24)
                : kind == JpegKind::rows    ? static_cast<uint8_t>(255 * i / pixels.size())
                : kind == JpegKind::columns ? static_cast<uint8_t>(255 * (i % line) / line)
                                            : colour[i % static_cast<size_t>(channels)];
  }
  const int sampling = kind == JpegKind::grey ? TJSAMP_GRAY : TJSAMP_444;
  const tjhandle handle = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  const int result = tjCompress2(handle, pixels.data(), width, 0, height, format, &out, &size,
                                 sampling, 95, TJFLAG_ACCURATEDCT | flags);
  Bytes bytes(out, out + size);
  tjFree(out);
  tjDestroy(handle);
  if (result != 0) throw std::runtime_error("the test's JPEG cannot be made");
  return bytes;
}

/// A JPEG of `height` x `width` whose EXIF says to turn it to the right.
inline Bytes turned_jpeg_bytes(int height, int width, JpegKind kind = JpegKind::rgb) {
  Bytes bytes = jpeg_bytes(height, width, kind, {200, 100, 50});
  const std::string exif(
      "\xff\xe1\x00\x22"
      "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0",
      36);
  bytes.insert(bytes.begin() + 2, exif.begin(), exif.end());
  return bytes;
}

/// Inks that are stored as they are, {first, 128, 128, fourth}: a grey YCCK file says so of itself.
inline Bytes cmyk_jpeg_bytes(int height, int width, uint8_t first, uint8_t fourth) {
  const auto ink = static_cast<uint8_t>(255 - first);
  Bytes bytes = jpeg_bytes(height, width, JpegKind::ycck, {ink, ink, ink, fourth});
  for (size_t i = 0; i + 11 < bytes.size(); ++i) {
    const bool adobe = bytes[i] == 'A' && bytes[i + 1] == 'd' && bytes[i + 2] == 'o';
    if (adobe) bytes[i + 11] = 0;  // the transform: none
  }
  return bytes;
}

}  // namespace moesaic::test
