// SPDX-License-Identifier: Apache-2.0
// Runs a kernel of ops/kernels/block.h by threads of the host, for ThreadSanitizer: it then reports
// threads of a block that touch one place in one phase, and blocks that touch one place in one
// launch.
//
// A block's threads are shared out among seven of the host, which makes a launch a hundred times
// faster than one each. Kernels talk to neighbours at distances that are powers of two, and no such
// two are on the same thread. Two teams run the blocks, the even and the odd ones, and do not wait
// for each other.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "ops/kernels/block.h"

namespace moesaic::testing {

/// Two barriers in turn. With one alone, a thread that wakes late from a phase would seem to come
/// after those that have ended the next one already, and their races would go unseen.
class PhaseBarrier {
 public:
  explicit PhaseBarrier(unsigned threads) {
    for (auto& barrier : barriers_) pthread_barrier_init(&barrier, nullptr, threads);
  }
  ~PhaseBarrier() {
    for (auto& barrier : barriers_) pthread_barrier_destroy(&barrier);
  }
  PhaseBarrier(const PhaseBarrier&) = delete;
  PhaseBarrier& operator=(const PhaseBarrier&) = delete;

  /// phase: number of barriers that the calling thread has passed.
  void wait(uint64_t phase) { pthread_barrier_wait(&barriers_[phase % 2]); }

 private:
  pthread_barrier_t barriers_[2];
};

/// Threads of the host that run one block after another.
struct Team {
  static constexpr int kWorkers = 7;

  explicit Team(size_t shared_bytes)
      : barrier(kWorkers), shared(shared_bytes / sizeof(std::max_align_t) + 1) {}

  PhaseBarrier barrier;
  std::vector<std::max_align_t> shared;
};

/// What one thread of a team sees of a block.
class ThreadedBlock {
 public:
  template <class T>
  class Local {
   public:
    explicit Local(const ThreadedBlock& block)
        : block_(block), values_(static_cast<size_t>(block.threads())) {}
    /// A GPU ignores `thread`: the value is the calling thread's.
    T& operator[](int thread) {
      if (thread != block_.running_) std::abort();
      return values_[static_cast<size_t>(thread)];
    }

   private:
    const ThreadedBlock& block_;
    std::vector<T> values_;
  };

  ThreadedBlock(int64_t index, int64_t count, int threads, int worker, Team& team, uint64_t& phase)
      : index_(index),
        count_(count),
        threads_(threads),
        worker_(worker),
        team_(team),
        phase_(phase) {
    // Shared memory starts uninitialised on a GPU; all bits one are NaN and -1.
    if (worker == 0)
      std::memset(team.shared.data(), 0xFF, team.shared.size() * sizeof(team.shared[0]));
    synchronise();
  }

  int threads() const { return threads_; }
  int64_t index() const { return index_; }
  int64_t count() const { return count_; }

  template <class Phase>
  void each(const Phase& phase) {
    for (running_ = worker_; running_ < threads_; running_ += Team::kWorkers) phase(running_);
    synchronise();
  }
  template <class T>
  T broadcast(const T* at) {
    const T value = *at;
    synchronise();
    return value;
  }
  template <class T>
  T* shared(int64_t byte_offset) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(team_.shared.data()) + byte_offset);
  }

  void atomic_add(int32_t* to, int32_t value) {
    std::atomic_ref<int32_t>(*to).fetch_add(value, std::memory_order_relaxed);
  }
  void atomic_or(uint32_t* to, uint32_t bits) {
    std::atomic_ref<uint32_t>(*to).fetch_or(bits, std::memory_order_relaxed);
  }
  void atomic_max(int32_t* to, int32_t value) {
    const std::atomic_ref<int32_t> at(*to);
    int32_t old = at.load(std::memory_order_relaxed);
    while (old < value && !at.compare_exchange_weak(old, value, std::memory_order_relaxed)) {
    }
  }

 private:
  void synchronise() { team_.barrier.wait(phase_++); }

  int64_t index_, count_;
  int threads_, worker_, running_ = -1;
  Team& team_;
  uint64_t& phase_;
};

/// Runs every block of a launch.
template <class Kernel>
void run_in_threads(const Kernel& kernel, int64_t blocks, int threads, size_t shared_bytes) {
  constexpr int64_t kTeams = 2;
  Team even(shared_bytes), odd(shared_bytes);
  Team* const teams[kTeams] = {&even, &odd};
  std::vector<std::thread> all;
  for (int64_t first = 0; first < kTeams && first < blocks; ++first) {
    for (int worker = 0; worker < Team::kWorkers; ++worker) {
      all.emplace_back([&, first, worker] {
        uint64_t phase = 0;
        for (int64_t index = first; index < blocks; index += kTeams) {
          ThreadedBlock block(index, blocks, threads, worker, *teams[first], phase);
          kernel(block);
          teams[first]->barrier.wait(phase++);  // The next block uses the same shared memory.
        }
      });
    }
  }
  for (std::thread& thread : all) thread.join();
}

/// A device for ops/cuda/*_on.h that runs kernels so.
struct ThreadedDevice {
  template <int Threads, class Kernel>
  void start(const Kernel& kernel, int64_t blocks, int threads, int64_t shared_bytes) const {
    if (threads > Threads) std::abort();  // more than the kernel is compiled for
    run_in_threads(kernel, blocks, threads, static_cast<size_t>(shared_bytes));
  }
};

}  // namespace moesaic::testing
