// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/export/formats.h"

namespace moesaic::testing {

/// Facts of a network that takes gray images.
inline ExportInfo toy_info() {
  InputSpec input;
  input.dataset = "toys";
  input.input_size = {1, 8, 8};
  input.rescale_factor = 1.0 / 255.0;
  input.mean = {0.5};
  input.std = {0.25};
  input.channel_order = "gray";
  input.classes = {"a", "b", "c", "d", "e"};
  return {input};
}

}  // namespace moesaic::testing
