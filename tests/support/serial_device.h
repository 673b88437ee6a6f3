// SPDX-License-Identifier: Apache-2.0
// A device for ops/cuda/*_on.h that runs GPU kernels on the host, with workspace that holds
// anything.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "ops/kernels/block.h"

namespace moesaic::ops::kernels {

/// Order in which the threads of a phase and the blocks of a launch run.
enum class Order { forward, reverse, shuffled };

inline std::vector<int64_t> turns(int64_t count, Order order, uint32_t seed) {
  std::vector<int64_t> list(static_cast<size_t>(count));
  std::iota(list.begin(), list.end(), int64_t{0});
  if (order == Order::reverse) std::reverse(list.begin(), list.end());
  if (order == Order::shuffled) std::shuffle(list.begin(), list.end(), std::mt19937(seed));
  return list;
}

class SerialBlock {
 public:
  template <class T>
  class Local {
   public:
    explicit Local(const SerialBlock& block) : values_(static_cast<size_t>(block.threads())) {}
    T& operator[](int thread) { return values_[static_cast<size_t>(thread)]; }

   private:
    std::vector<T> values_;
  };

  SerialBlock(int64_t index, int64_t count, int threads, size_t shared_bytes, Order order)
      : index_(index), count_(count), threads_(threads), order_(order) {
    // Shared memory starts uninitialised on a GPU; all bits one are NaN and -1.
    shared_.resize(shared_bytes / sizeof(std::max_align_t) + 1);
    std::memset(shared_.data(), 0xFF, shared_.size() * sizeof(std::max_align_t));
  }

  int threads() const { return threads_; }
  int64_t index() const { return index_; }
  int64_t count() const { return count_; }

  template <class Phase>
  void each(const Phase& phase) {
    for (const int64_t thread : turns(threads_, order_, ++phases_)) phase(static_cast<int>(thread));
  }

  template <class T>
  T broadcast(const T* at) const {
    return *at;
  }

  template <class T>
  T* shared(int64_t byte_offset) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(shared_.data()) + byte_offset);
  }

  void atomic_add(int32_t* to, int32_t value) { *to += value; }
  void atomic_or(uint32_t* to, uint32_t bits) { *to |= bits; }
  void atomic_max(int32_t* to, int32_t value) { *to = std::max(*to, value); }

 private:
  int64_t index_, count_;
  int threads_;
  Order order_;
  uint32_t phases_ = 0;
  std::vector<std::max_align_t> shared_;
};

/// Runs every block of a launch.
template <class Kernel>
void run_serially(const Kernel& kernel, int64_t blocks, int threads, size_t shared_bytes,
                  Order order) {
  for (const int64_t index : turns(blocks, order, 7)) {
    SerialBlock block(index, blocks, threads, shared_bytes, order);
    kernel(block);
  }
}

}  // namespace moesaic::ops::kernels

namespace moesaic::testing {

struct SerialDevice {
  ops::kernels::Order order = ops::kernels::Order::forward;

  template <int Threads, class Kernel>
  void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes) const {
    if (threads > Threads) std::abort();  // more than the kernel is compiled for
    ops::kernels::run_serially(kernel, blocks, threads, static_cast<size_t>(shared_bytes), order);
  }
};

constexpr ops::kernels::Order kOrders[] = {
    ops::kernels::Order::forward, ops::kernels::Order::reverse, ops::kernels::Order::shuffled};

}  // namespace moesaic::testing
