// SPDX-License-Identifier: Apache-2.0
// Counts what a test costs instead of measuring its time.
#pragma once

#include <cstdint>

namespace moesaic::test {

/// Counts the work of the calling thread from its construction on: one at a time.
class Work {
 public:
  Work();

  /// Returns the most bytes of operator new that were held at once.
  int64_t peak_bytes() const;
  /// Returns how many pairs of strings of one length, or of bytes, were compared.
  int64_t comparisons() const;
};

}  // namespace moesaic::test
