// SPDX-License-Identifier: Apache-2.0
#include <png.h>

#include <algorithm>
#include <cstring>

#include "decoders.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

/// Max number of bytes that deflate makes of one byte, and a little more.
constexpr uint64_t kMaxExpansion = 1040;

struct PngDecoder final : FormatDecoder {
  explicit PngDecoder(std::span<const uint8_t> file) : bytes(file) {
    reader = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (reader != nullptr) info = png_create_info_struct(reader);
    if (info == nullptr) {
      png_destroy_read_struct(&reader, nullptr, nullptr);
      fail("out of memory");
    }
  }
  ~PngDecoder() override { png_destroy_read_struct(&reader, &info, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  void read_header() {
    guarded("not a PNG that can be read", [this] {
      png_set_read_fn(reader, &bytes, take);
      png_set_user_limits(reader, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
      // Colour profiles, texts and the like are skipped, not unpacked.
      png_set_keep_unknown_chunks(reader, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
      png_read_info(reader, info);
    });
    height = png_get_image_height(reader, info);
    width = png_get_image_width(reader, info);
  }

  void decode(int64_t, std::vector<uint8_t>& rgb) override {
    // Before memory is taken.
    if (png_get_rowbytes(reader, info) * static_cast<uint64_t>(height) >
        bytes.size() * kMaxExpansion) {
      fail("corrupt PNG: the file ends too early");
    }
    guarded("corrupt PNG", [this] {
      png_set_expand_gray_1_2_4_to_8(reader);
      if (png_get_color_type(reader, info) == PNG_COLOR_TYPE_PALETTE) {
        png_set_palette_to_rgb(reader);
      }
      png_set_strip_alpha(reader);
      png_set_strip_16(reader);
      png_set_gray_to_rgb(reader);
      png_set_interlace_handling(reader);
      png_read_update_info(reader, info);
    });
    const size_t row = png_get_rowbytes(reader, info);
    rows.resize(static_cast<size_t>(height));
    rgb.resize(row * rows.size());
    for (size_t y = 0; y < rows.size(); ++y) rows[y] = rgb.data() + y * row;
    guarded("corrupt PNG", [this] { png_read_image(reader, rows.data()); });
    // No pixel is behind the last row, so that what is wrong there does no harm.
    try {
      guarded("the image is complete, but not the file", [this] { png_read_end(reader, nullptr); });
    } catch (const Error& problem) {
      warning = problem.what();
    }
  }

  static PngDecoder& of(png_structp reader) {
    return *static_cast<PngDecoder*>(png_get_error_ptr(reader));
  }

  [[noreturn]] static void on_error(png_structp reader, png_const_charp text) {
    of(reader).error = text;
    png_longjmp(reader, 1);
  }
  static void on_warning(png_structp reader, png_const_charp text) { of(reader).warning = text; }

  static void take(png_structp reader, png_bytep out, size_t count) {
    auto& rest = *static_cast<std::span<const uint8_t>*>(png_get_io_ptr(reader));
    if (rest.size() < count) png_error(reader, "the file ends too early");
    std::memcpy(out, rest.data(), count);
    rest = rest.subspan(count);
  }

  /// Runs `work`, which libpng leaves by a jump on an error: it must have nothing to destroy.
  void guarded(const char* what, auto work) {
    if (setjmp(png_jmpbuf(reader)) == 0) {
      work();
      return;
    }
    std::replace(error.begin(), error.end(), '\n', ' ');
    fail("{}: {}", what, error);
  }

  std::span<const uint8_t> bytes;
  png_structp reader = nullptr;
  png_infop info = nullptr;
  std::string error;
  std::vector<png_bytep> rows;
};

}  // namespace

std::unique_ptr<FormatDecoder> open_png(std::span<const uint8_t> bytes) {
  auto decoder = std::make_unique<PngDecoder>(bytes);
  decoder->read_header();
  return decoder;
}

}  // namespace moesaic
