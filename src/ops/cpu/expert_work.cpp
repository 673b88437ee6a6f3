// SPDX-License-Identifier: Apache-2.0
#include "expert_work.h"

namespace moesaic::ops {
namespace {

constexpr int64_t kPackingRows = 60;  // What packing a panel costs, in rows that run over it.

int64_t work_of(const Panel& panel) {
  return (panel.rows() + kPackingRows) * panel.columns;
}

}  // namespace

std::vector<Panel> panels_of(const int32_t* offsets, int64_t experts, int64_t columns,
                             int64_t width) {
  std::vector<Panel> panels;
  for (int64_t e = 0; e < experts; ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    for (int64_t column = 0; column < columns; column += width) {
      panels.push_back(
          {e, offsets[e], offsets[e + 1], column, std::min(width, columns - column)});
    }
  }
  return panels;
}

std::vector<int64_t> share_panels(const std::vector<Panel>& panels, int64_t parts) {
  int64_t work = 0;
  for (const Panel& panel : panels) work += work_of(panel);
  std::vector<int64_t> begins(parts + 1, static_cast<int64_t>(panels.size()));
  int64_t done = 0, part = 0;
  for (size_t i = 0; i < panels.size(); ++i) {
    // A panel belongs to the part within whose share of the work its middle lies.
    const int64_t middle = done + work_of(panels[i]) / 2;
    while (part < parts && middle * parts >= work * part) {
      begins[part++] = static_cast<int64_t>(i);
    }
    done += work_of(panels[i]);
  }
  return begins;
}

}  // namespace moesaic::ops
