// SPDX-License-Identifier: Apache-2.0
#include "delayed_group.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>

namespace moesaic::bench {
namespace {

using Clock = std::chrono::steady_clock;

class DelayedWork : public c10d::Work {
 public:
  explicit DelayedWork(std::vector<at::Tensor> tensors)
      : tensors_(std::move(tensors)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  void complete() { future_->markCompleted(c10::IValue(tensors_)); }
  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    future_->wait();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class DelayedBackend : public c10d::Backend {
 public:
  explicit DelayedBackend(std::chrono::duration<double> delay)
      : Backend(/*rank=*/0, /*size=*/2),
        delay_(std::chrono::duration_cast<Clock::duration>(delay)),
        thread_([this] { run(); }) {}
  ~DelayedBackend() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    begun_.notify_all();
    thread_.join();
  }

  const std::string getBackendName() const override { return "delayed"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    auto work = c10::make_intrusive<DelayedWork>(tensors);
    {
      const std::lock_guard lock(mutex_);
      last_end_ = std::max(last_end_, Clock::now()) + delay_;
      works_.emplace_back(last_end_, work);
    }
    begun_.notify_all();
    return work;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      begun_.wait(lock, [this] { return ending_ || !works_.empty(); });
      if (works_.empty()) return;
      const auto [end, work] = works_.front();
      works_.pop_front();
      lock.unlock();
      std::this_thread::sleep_until(end);
      work->complete();
      lock.lock();
    }
  }

  Clock::duration delay_;
  std::mutex mutex_;
  std::condition_variable begun_;
  std::deque<std::pair<Clock::time_point, c10::intrusive_ptr<DelayedWork>>> works_;
  Clock::time_point last_end_ = {};
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_delayed_group(std::chrono::duration<double> delay) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                       /*rank=*/0, /*size=*/2);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<DelayedBackend>(delay));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return group;
}

}  // namespace moesaic::bench
