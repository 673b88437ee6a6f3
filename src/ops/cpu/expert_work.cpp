// SPDX-License-Identifier: Apache-2.0
#include "expert_work.h"

#include <algorithm>

namespace moesaic::ops {
namespace {

// Packing an expert's weights for so few remaining rows is not worth its cost.
constexpr int64_t kSliver = 8;

}  // namespace

std::vector<std::vector<Segment>> split_rows(const int32_t* offsets, int64_t experts, int64_t parts,
                                             int64_t overhead) {
  int64_t left = 0;  // Remaining work: rows, plus the overhead of each expert with rows.
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    left += rows > 0 ? rows + overhead : 0;
  }
  std::vector<std::vector<Segment>> pieces(parts);
  int64_t part = 0;
  int64_t room = left / parts;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t begin = offsets[e];
    const int64_t end = offsets[e + 1];
    while (begin < end) {
      const bool last = part + 1 == parts;
      int64_t take = last ? end - begin : std::min(end - begin, room - overhead);
      if (end - begin - take < kSliver) take = end - begin;
      if (take < std::min(kSliver, end - begin)) {
        room = left / (parts - ++part);
        continue;
      }
      pieces[part].push_back({e, begin, begin + take});
      begin += take;
      room -= take + overhead;
      left -= take + (begin == end ? overhead : 0);
    }
  }
  return pieces;
}

}  // namespace moesaic::ops
