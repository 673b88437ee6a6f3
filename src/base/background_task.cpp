// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/background_task.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <csignal>
#include <tuple>

#include "moesaic/base/log.h"

namespace moesaic {
namespace {

constexpr int kNicer = 10;

/// Leaves the signals that end a process to its other threads, while it lives.
class WithoutStopSignals {
 public:
  WithoutStopSignals() {
    sigset_t blocked;
    ::sigemptyset(&blocked);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&blocked, number);
    ::pthread_sigmask(SIG_BLOCK, &blocked, &former_);
  }
  WithoutStopSignals(const WithoutStopSignals&) = delete;
  WithoutStopSignals& operator=(const WithoutStopSignals&) = delete;
  ~WithoutStopSignals() { ::pthread_sigmask(SIG_SETMASK, &former_, nullptr); }

 private:
  sigset_t former_;
};

}  // namespace

BackgroundTask::~BackgroundTask() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

void BackgroundTask::start(std::function<void()> task) {
  wait();
  const WithoutStopSignals inherited;  // The new thread begins with the mask of this one.
  starter_ = std::this_thread::get_id();
  running_ = std::async(std::launch::async | std::launch::deferred, std::move(task));
  const bool deferred = running_.wait_for(std::chrono::seconds(0)) == std::future_status::deferred;
  if (deferred) running_.wait();  // The system has no thread left.
}

bool BackgroundTask::is_running() const {
  return running_.valid() &&
         running_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
}

bool BackgroundTask::poll() {
  if (is_running()) return false;
  wait();
  return true;
}

// With no core to spare this thread would hold up one that computes, for which all others wait. It
// does not interrupt others when it wakes either. On Linux both are the thread's own.
void BackgroundTask::lower_thread_priority() const {
  if (std::this_thread::get_id() == starter_) return;
  std::ignore = ::nice(kNicer);
  const sched_param none = {};
  ::pthread_setschedparam(::pthread_self(), SCHED_BATCH, &none);
}

}  // namespace moesaic
