// SPDX-License-Identifier: Apache-2.0
#include "run_pool.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "moesaic/base/progress.h"

namespace moesaic {
namespace {

/// A pool of threads that process runs one after the other.
class RunPool {
 public:
  RunPool(size_t count, const ReproduceOptions& options, const MakeRun& make)
      : count_(count), options_(options), make_(make) {
    if (options.progress && count > 0) {
      progress_.emplace(
          ProgressOptions{.label = "runs", .total = static_cast<int64_t>(count), .unit = "runs"});
    }
  }

  /// Makes all runs. Returns false if a signal stopped it.
  bool run() {
    std::vector<std::thread> threads;
    const int wanted = options_.device == "cpu" ? at::get_num_threads() : 1;  // A GPU takes one.
    const auto side_by_side = std::min(static_cast<size_t>(wanted), count_);
    for (size_t i = 0; i < side_by_side; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    if (progress_) progress_->finish();
    return !stopped();
  }

 private:
  bool stopped() const { return options_.stop != nullptr && options_.stop->requested(); }

  void work() {
    omp_set_num_threads(1);  // Other threads already use the remaining cores.
    try {
      while (const std::optional<size_t> task = next()) {
        const auto said = make_(*task, [this] { return going(); });
        if (!said) return;
        const std::lock_guard lock(mutex_);
        if (progress_) progress_->advance(1, *said);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  bool going() {
    const std::lock_guard lock(mutex_);
    return !error_ && !stopped();
  }

  std::optional<size_t> next() {
    const std::lock_guard lock(mutex_);
    if (taken_ == count_ || error_ || stopped()) return std::nullopt;
    return taken_++;
  }

  size_t count_;
  const ReproduceOptions& options_;
  const MakeRun& make_;
  std::mutex mutex_;
  size_t taken_ = 0;
  std::exception_ptr error_;
  std::optional<Progress> progress_;
};

}  // namespace

bool make_runs(size_t count, const ReproduceOptions& options, const MakeRun& make) {
  return RunPool(count, options, make).run();
}

}  // namespace moesaic
