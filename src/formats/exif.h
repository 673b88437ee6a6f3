// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace moesaic {

/// Returns the orientation of a JPEG, PNG or WebP file, 1 to 8, as Pillow's ImageOps.exif_transpose
/// reads it: EXIF's, of either byte order and any integer type, or else XMP's; in a PNG also out of
/// ImageMagick's raw profiles. 1, as stored, where there is none or it is damaged.
int exif_orientation(std::span<const uint8_t> file);

}  // namespace moesaic
