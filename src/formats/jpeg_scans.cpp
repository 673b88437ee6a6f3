// SPDX-License-Identifier: Apache-2.0
#include "jpeg_scans.h"

#include <algorithm>
#include <map>

namespace moesaic::jpeg {
namespace {

using Span = std::span<const uint8_t>;

constexpr uint64_t kAll = ~uint64_t{0};

/// The coefficients, one a bit, whose last bit a scan has brought, by component.
using Complete = std::map<uint8_t, uint64_t>;

/// Takes a frame's components: behind precision, height and width, three bytes each.
void take_frame(Span segment, Complete& complete) {
  for (size_t i = 0; segment.size() > 5 && i < segment[5] && 6 + 3 * i < segment.size(); ++i) {
    complete.emplace(segment[6 + 3 * i], 0);
  }
}

/// Takes a scan's header: its components, two bytes each, the first and the last coefficient, and
/// how many of their bits are still to come.
void take_scan(Span segment, Complete& complete) {
  if (segment.empty()) return;
  const size_t count = segment[0], behind = 1 + 2 * count;
  if (segment.size() < behind + 3 || (segment[behind + 2] & 15) != 0) return;
  const unsigned first = segment[behind], last = std::min<unsigned>(63, segment[behind + 1]);
  uint64_t brought = 0;
  for (unsigned k = first; k <= last; ++k) brought |= uint64_t{1} << k;
  for (size_t i = 0; i < count; ++i) {
    const auto found = complete.find(segment[1 + 2 * i]);
    if (found != complete.end()) found->second |= brought;
  }
}

}  // namespace

bool has_all_scans(Span file) {
  constexpr uint8_t kFrame = 0xc0, kLastFrame = 0xcf, kScan = 0xda;
  Complete complete;
  for (size_t at = 2; at + 4 <= file.size();) {
    const uint8_t marker = file[at + 1];
    // Data of a scan hold 0xff before 0 and before restart markers only.
    if (file[at] != 0xff || marker == 0 || marker == 0xff || (marker >= 0xd0 && marker <= 0xd7)) {
      ++at;
      continue;
    }
    const size_t length = size_t{file[at + 2]} << 8 | file[at + 3];
    const Span rest = file.subspan(at + 4);
    const Span segment = rest.first(std::min(rest.size(), length < 2 ? 0 : length - 2));
    // Of the same kind as frames are Huffman tables, a reserved one, and arithmetic conditioning.
    const bool frame = marker >= kFrame && marker <= kLastFrame && marker != 0xc4 &&
                       marker != 0xc8 && marker != 0xcc;
    if (frame) take_frame(segment, complete);
    if (marker == kScan) take_scan(segment, complete);
    at += 2 + std::max<size_t>(length, 2);
  }
  return !complete.empty() && std::all_of(complete.begin(), complete.end(),
                                          [](const auto& one) { return one.second == kAll; });
}

}  // namespace moesaic::jpeg
