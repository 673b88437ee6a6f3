// SPDX-License-Identifier: Apache-2.0
// Grey images of colours, and colours of grey.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/data/resize.h"

namespace moesaic {

/// Returns whether images of so many channels become those of another number: 1 and 3 do.
bool converts_channels(int64_t from, int64_t to);

/// Makes a colour image grey, L = 0.299 R + 0.587 G + 0.114 B in fixed point as Pillow rounds it,
/// or a grey one three equal channels; leaves an image that has `channels` alone.
void convert_channels(Bitmap& bitmap, int64_t channels);

/// Returns mean or std of each of `channels`, of which `values` has 1 or 3: in place of three the
/// same weighted sum, in place of one three times the same.
std::vector<double> converted_values(const std::vector<double>& values, int64_t channels);

}  // namespace moesaic
