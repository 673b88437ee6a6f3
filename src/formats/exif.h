// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace moesaic {

/// Returns EXIF's orientation of a JPEG or PNG file, 1 to 8; 1, as stored, where there is none or
/// it is damaged.
int exif_orientation(std::span<const uint8_t> file);

}  // namespace moesaic
