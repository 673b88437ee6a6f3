// SPDX-License-Identifier: Apache-2.0
// PNG, JPEG and WebP, with the orientation of EXIF and XMP. What is decoded takes memory in
// proportion to the pixels that the header says, so that inputs of more than 4 million pixels are
// opened only.
#include "formats/decoders.h"
#include "fuzz.h"
#include "moesaic/formats/image.h"

void moesaic::fuzz::read_input(Bytes input) {
  exif_orientation(input);
  ImageDecoder decoder(input, /*applies_exif=*/true);
  if (decoder.height() * decoder.width() > int64_t{1} << 22) return;
  std::vector<uint8_t> rgb;
  const ImageDecoder stored(input);
  const int64_t h = stored.height(), w = stored.width();
  Rectangle held;
  ImageDecoder(input).decode_crop({h / 4, w / 4, (h + 1) / 2, (w + 1) / 2}, 8, rgb, held);
  decoder.decode(8, rgb);
}
