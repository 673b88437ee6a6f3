// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/export/formats.h"

namespace moesaic::testing {

/// Facts of a network that takes gray images.
inline ExportInfo toy_info() {
  return {{.dataset = "toys",
           .input_size = {1, 8, 8},
           .rescale_factor = 1.0 / 255.0,
           .mean = {0.5},
           .std = {0.25},
           .channel_order = "gray",
           .classes = {"a", "b", "c", "d", "e"}}};
}

}  // namespace moesaic::testing
