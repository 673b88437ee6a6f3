// SPDX-License-Identifier: Apache-2.0
#include "base/work.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t held = 0, peak = 0, compared = 0;

void* counted(std::size_t bytes) {
  void* const place = std::malloc(std::max<std::size_t>(1, bytes));
  if (place == nullptr) throw std::bad_alloc();
  held += static_cast<int64_t>(::malloc_usable_size(place));
  peak = std::max(peak, held);
  return place;
}

void release(void* place) noexcept {
  held -= static_cast<int64_t>(::malloc_usable_size(place));
  std::free(place);
}

}  // namespace

// These stand in for the C++ library's in the whole program.
void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
// AddressSanitizer has these of its own, which release() would not fit.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
  return counted(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void* operator new[](std::size_t bytes, const std::nothrow_t& none) noexcept {
  return operator new(bytes, none);
}
void operator delete(void* place) noexcept {
  release(place);
}
void operator delete[](void* place) noexcept {
  release(place);
}
void operator delete(void* place, std::size_t) noexcept {
  release(place);
}
void operator delete[](void* place, std::size_t) noexcept {
  release(place);
}

// The C library's, by which std::string compares.
extern "C" int memcmp(const void* a, const void* b, std::size_t count) noexcept {
  ++compared;
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  for (; count > 0; --count, ++x, ++y) {
    if (*x != *y) return *x < *y ? -1 : 1;
  }
  return 0;
}

namespace moesaic::test {

Work::Work() {
  held = peak = compared = 0;
}

int64_t Work::peak_bytes() const {
  return peak;
}

int64_t Work::comparisons() const {
  return compared;
}

}  // namespace moesaic::test
