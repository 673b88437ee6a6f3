// SPDX-License-Identifier: Apache-2.0
#include "expert_work.h"

namespace moesaic::ops {

std::vector<Panel> panels_of(const int32_t* offsets, int64_t experts, int64_t columns,
                             int64_t width) {
  std::vector<Panel> panels;
  for (int64_t e = 0; e < experts; ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    for (int64_t column = 0; column < columns; column += width) {
      panels.push_back({e, offsets[e], offsets[e + 1], column, std::min(width, columns - column)});
    }
  }
  return panels;
}

}  // namespace moesaic::ops
