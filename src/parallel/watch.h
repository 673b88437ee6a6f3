// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "moesaic/parallel/processes.h"

namespace moesaic {

/// Tells the other processes that this one lives and what it does, every second, and looks after
/// the next one that is not done; reads all of them when one is missed. All of it goes through the
/// store, whose client it has for itself. Another thread looks after the store, which does not
/// answer where the process that serves it is stopped.
class Processes::Watch {
 public:
  Watch(c10::intrusive_ptr<c10d::Store> store, const Launch& launch, std::chrono::seconds timeout);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void set_activity(const std::string& activity);
  bool tell_failure(const std::string& message) noexcept;
  std::string explain(const std::string& message);
  void finish();
  void when_another_fails(std::function<void()> action);
  std::vector<std::string> exchange(const std::string& text, std::chrono::seconds patience);
  void progress() noexcept { ++progress_; }
  /// Returns what explain() does where the store does not answer, by which the one that speaks is
  /// chosen: the first of a machine does, and the first that is not done.
  std::string without_store() const;
  void leave() noexcept;

 private:
  static constexpr int64_t kNobody = -1;

  /// Whether a process is alive and works, by its beats.
  class Pulse;

  void run();
  void guard(const std::stop_token& stop);
  void act() const;
  void beat();
  std::string text_at(const std::string& key);
  std::string beat_of(int64_t rank) { return text_at("beat/" + std::to_string(rank)); }
  bool is_first_to_tell();
  bool is_done(int64_t rank) { return store_->check({"done/" + std::to_string(rank)}); }
  /// Returns the first process from `rank` on whose work is not done; this one where that of all
  /// others is.
  int64_t at_work_from(int64_t rank);
  bool speaks_alone() const { return first_of_machine_ || rank_ == first_at_work_; }
  /// Returns the lock unless another thread waits for a store that does not answer.
  std::unique_lock<std::mutex> lock_soon();

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_, size_, exchanges_ = 0;
  std::atomic<int64_t> beats_ = 0, progress_ = 0;  ///< Beats that the store answered.
  std::chrono::seconds lost_after_;                ///< Without a beat a process is dead or stopped.
  bool serves_store_;
  bool first_of_machine_;
  std::atomic<int64_t> first_at_work_;  ///< But for the process that serves the store.
  int64_t missed_ = kNobody;            ///< Who was not heard of.
  std::string leader_;                  ///< Machine and pid of process 0.
  std::chrono::steady_clock::time_point last_beat_ = {};
  std::string activity_ = "the start";
  bool ending_ = false;
  std::atomic<bool> fails_ = false;
  std::function<void()> when_another_fails_;
  std::mutex mutex_;
  /// Of what is read without mutex_ too, which is held while the store does not answer: activity_
  /// and when_another_fails_.
  mutable std::mutex text_mutex_;
  std::condition_variable ends_;
  std::thread thread_;
  std::jthread guard_;
};

}  // namespace moesaic
