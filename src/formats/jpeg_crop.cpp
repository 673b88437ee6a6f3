// SPDX-License-Identifier: Apache-2.0
// Parts of JPEG files by libjpeg-turbo's own interface; TurboJPEG's has none before its version 3.
#include <csetjmp>
#include <cstdio>
// Needs what is above.
#include <jpeglib.h>

#include <algorithm>

#include "decoders.h"

namespace moesaic::jpeg {
namespace {

/// Columns beside a part: enough to interpolate the colours of its first and last one.
constexpr int64_t kMargin = 8;

struct Reader {
  Reader() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = refuse;
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level < 0) refuse(common);  // A warning.
    };
  }
  ~Reader() { jpeg_destroy_decompress(&info); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  [[noreturn]] static void refuse(j_common_ptr common) {
    std::longjmp(static_cast<Reader*>(common->client_data)->refused, 1);
  }

  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf refused = {};
};

/// No object with a destructor may live here, since errors jump to the beginning.
bool read(Reader& reader, std::span<const uint8_t> file, int64_t denominator, Rectangle& part,
          std::vector<uint8_t>& rgb) {
  if (setjmp(reader.refused) != 0) return false;
  jpeg_decompress_struct& info = reader.info;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), file.size());
  jpeg_read_header(&info, TRUE);
  if (jpeg_has_multiple_scans(&info) != FALSE) return false;  // All of it is held in memory anyway.
  info.out_color_space = JCS_RGB;
  info.scale_denom = static_cast<unsigned>(denominator);
  jpeg_start_decompress(&info);
  const int64_t begin = std::max<int64_t>(0, part.left - kMargin);
  const int64_t end = std::min<int64_t>(info.output_width, part.left + part.width + kMargin);
  auto left = static_cast<JDIMENSION>(begin), width = static_cast<JDIMENSION>(end - begin);
  jpeg_crop_scanline(&info, &left, &width);
  part.left = left;
  part.width = width;
  const size_t line = size_t{3} * width;
  rgb.resize(line * static_cast<size_t>(part.height));
  if (part.top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(part.top));
  for (size_t y = 0; y < static_cast<size_t>(part.height); ++y) {
    JSAMPROW row = rgb.data() + y * line;
    jpeg_read_scanlines(&info, &row, 1);
  }
  // Rows below the part are read too, so that damage is found whatever the part; skipping the last
  // one would skip what follows it in the file.
  const JDIMENSION below = info.output_height - info.output_scanline;
  if (below > 1) jpeg_skip_scanlines(&info, below - 1);
  if (below > 0) {
    JSAMPARRAY unused = info.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&info), JPOOL_IMAGE,
                                               static_cast<JDIMENSION>(line), 1);
    jpeg_read_scanlines(&info, unused, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

}  // namespace

bool decode_crop(std::span<const uint8_t> bytes, int64_t denominator, Rectangle& part,
                 std::vector<uint8_t>& rgb) {
  Reader reader;
  return read(reader, bytes, denominator, part, rgb);
}

}  // namespace moesaic::jpeg
