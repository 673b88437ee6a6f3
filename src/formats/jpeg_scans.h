// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace moesaic::jpeg {

/// Returns whether the headers of the scans of a JPEG file announce every bit of every coefficient,
/// so that none is missing where it ends; not whether the data of the last scan are whole.
bool has_all_scans(std::span<const uint8_t> file);

}  // namespace moesaic::jpeg
