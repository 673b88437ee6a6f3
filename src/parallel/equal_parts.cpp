// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/equal_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {

int64_t nearest_divisor(int64_t number, int64_t wanted) {
  int64_t best = 1;
  for (int64_t divisor = 1; divisor <= number; ++divisor) {
    if (number % divisor == 0 && std::abs(divisor - wanted) < std::abs(best - wanted)) {
      best = divisor;
    }
  }
  return best;
}

void check_equal_parts(const std::string& where, int64_t batch, int64_t parts, int64_t processes) {
  const int64_t unit = parts * processes;
  if (batch % unit == 0) return;
  std::string choice =
      fmt::format("a batch of {}, or {}",
                  count_text(std::max<int64_t>(1, (batch + unit / 2) / unit) * unit, "image"),
                  count_text(nearest_divisor(batch / parts, processes), "process"));
  if (batch % processes == 0) {
    choice = fmt::format("accumulate={}", nearest_divisor(batch / processes, parts));
  }
  fail_usage("{}{} cannot have equal parts of a batch of {}{}; choose {}", where,
             count_text(processes, "process"), count_text(batch, "image"),
             parts == 1 ? "" : fmt::format(" in {} accumulated parts", parts), choice);
}

std::vector<int64_t> places_of_process(int64_t batch, int64_t parts, bool strided, int64_t rank,
                                       int64_t size) {
  check_equal_parts("", batch, parts, size);
  const int64_t own = batch / size, ranges = strided ? 1 : parts;
  std::vector<int64_t> places;
  for (int64_t part = 0; part < ranges; ++part) {
    const int64_t first = part * (batch / ranges) + rank * (own / ranges);
    for (int64_t i = 0; i < own / ranges; ++i) places.push_back(first + i);
  }
  return places;
}

}  // namespace moesaic
