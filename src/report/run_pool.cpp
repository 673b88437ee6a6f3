// SPDX-License-Identifier: Apache-2.0
#include "run_pool.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "moesaic/base/progress.h"

namespace moesaic {
namespace {

/// A pool of threads that process runs one after the other.
class RunPool {
 public:
  RunPool(const std::vector<int64_t>& images, const ReproduceOptions& options, const MakeRun& make)
      : images_(images), options_(options), make_(make), made_(images.size()) {
    if (options.progress && !images.empty()) {
      progress_.emplace(
          ProgressOptions{.label = "runs",
                          .total = std::accumulate(images.begin(), images.end(), int64_t{0}),
                          .unit = "images"});
    }
  }

  /// Makes all runs. Returns false if a signal stopped it.
  bool run() {
    std::vector<std::thread> threads;
    const int wanted = options_.device == "cpu" ? at::get_num_threads() : 1;  // A GPU takes one.
    const auto side_by_side = std::min(static_cast<size_t>(wanted), images_.size());
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
        const auto said = make_(*task, [&](int64_t images) { return going(*task, images); });
        if (!said) return;
        const std::lock_guard lock(mutex_);
        advance(*task, images_[*task], *said);  // It may have ended early.
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  bool going(size_t task, int64_t images) {
    const std::lock_guard lock(mutex_);
    advance(task, images);
    return !error_ && !stopped();
  }

  void advance(size_t task, int64_t images, std::string_view note = {}) {
    const int64_t more = images - std::exchange(made_[task], images);
    if (progress_) progress_->advance(more, note);
  }

  std::optional<size_t> next() {
    const std::lock_guard lock(mutex_);
    if (taken_ == images_.size() || error_ || stopped()) return std::nullopt;
    return taken_++;
  }

  const std::vector<int64_t>& images_;
  const ReproduceOptions& options_;
  const MakeRun& make_;
  std::mutex mutex_;
  std::vector<int64_t> made_;  ///< Images that each run has taken.
  size_t taken_ = 0;
  std::exception_ptr error_;
  std::optional<Progress> progress_;
};

}  // namespace

bool make_runs(const std::vector<int64_t>& images, const ReproduceOptions& options,
               const MakeRun& make) {
  return RunPool(images, options, make).run();
}

bool make_runs_in_turn(size_t count, const ReproduceOptions& options, const MakeRun& make) {
  const auto going = [&](int64_t) { return options.stop == nullptr || !options.stop->requested(); };
  try {
    for (size_t task = 0; task < count; ++task) {
      if (!going(0) || !make(task, going)) return false;
    }
    return true;
  } catch (const Stopped&) {
    return false;
  }
}

}  // namespace moesaic
