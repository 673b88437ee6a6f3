// SPDX-License-Identifier: Apache-2.0
#include <webp/decode.h>

#include "decoders.h"
#include "moesaic/base/error.h"

namespace moesaic {
namespace {

const char* reason(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "unsupported feature";
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "the file ends too early";
    default:
      return "its data are corrupt";
  }
}

class WebpDecoder final : public FormatDecoder {
 public:
  explicit WebpDecoder(std::span<const uint8_t> bytes) : bytes_(bytes) {
    WebPBitstreamFeatures found;
    const VP8StatusCode status = WebPGetFeatures(bytes.data(), bytes.size(), &found);
    if (status != VP8_STATUS_OK) fail("not a WebP that can be read: {}", reason(status));
    if (found.has_animation != 0) fail("an animated WebP, only still images are read");
    if (found.height < 1 || found.width < 1) fail("not a WebP that can be read: no image in it");
    height = found.height;
    width = found.width;
  }

  void decode(int64_t, std::vector<uint8_t>& rgb) override {
    WebPDecoderConfig config;
    if (WebPInitDecoderConfig(&config) == 0) fail("the build had another libwebp; rebuild");
    const size_t row = size_t{3} * static_cast<size_t>(width);
    rgb.resize(row * static_cast<size_t>(height));
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {rgb.data(), static_cast<int>(row), rgb.size()};
    const VP8StatusCode status = WebPDecode(bytes_.data(), bytes_.size(), &config);
    WebPFreeDecBuffer(&config.output);
    if (status != VP8_STATUS_OK) fail("corrupt WebP: {}", reason(status));
  }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace

std::unique_ptr<FormatDecoder> open_webp(std::span<const uint8_t> bytes) {
  return std::make_unique<WebpDecoder>(bytes);
}

}  // namespace moesaic
