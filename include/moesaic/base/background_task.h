// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace moesaic {

/// Runs one task at a time on a thread of its own. An exception of a task is rethrown once by the
/// next start(), poll() or wait(). Signals that ask the process to end do not reach the thread, so
/// a StopSignal lets the task finish. Not for use by several threads.
class BackgroundTask {
 public:
  BackgroundTask() = default;
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;
  /// Waits; logs an error that was not rethrown.
  ~BackgroundTask();

  /// Waits for the task before, then starts this one; runs it where the system has no thread left.
  void start(std::function<void()> task);
  /// Returns whether a task runs; never waits, and throws nothing of the task.
  bool is_running() const;
  /// Returns whether no task runs; never waits.
  bool poll();
  /// Waits for the end of the task, if there is one.
  void wait() {
    if (running_.valid()) std::exchange(running_, {}).get();
  }

  /// Called by a task: its thread yields to those that compute from now on. Does nothing where the
  /// task has no thread of its own.
  void lower_thread_priority() const;

 private:
  std::thread::id starter_;
  std::future<void> running_;
};

/// Calls `action(i)` for all i below `count` on threads of its own, as many as `threads`; rethrows
/// the first error.
void on_threads(size_t count, size_t threads, const auto& action) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        action(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> workers;
  for (size_t i = 0; i < std::min(threads, count); ++i) workers.emplace_back(work);
  workers.clear();  // The destructors join the threads.
  if (first) std::rethrow_exception(first);
}

}  // namespace moesaic
