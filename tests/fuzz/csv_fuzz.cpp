// SPDX-License-Identifier: Apache-2.0
// Tables of comma-separated values, compressed and not, and the numbers in them.
#include <cmath>
#include <cstdlib>

#include "fuzz.h"
#include "moesaic/formats/csv.h"

void moesaic::fuzz::read_input(Bytes input) {
  const MemoryFile file(input);
  csv::Reader names(file.path());
  while (names.next()) {
    if (names.text(names.size() - 1).size() > csv::kMaxFieldBytes) std::abort();
  }
  csv::Reader numbers(file.path());
  while (numbers.next()) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!std::isfinite(numbers.number(i))) std::abort();
    }
  }
}
