// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "moesaic/parallel/processes.h"

namespace moesaic {

/// How long nothing new was heard. It is counted in pauses between calls, so that no time is missed
/// in which all processes were stopped.
class Silence {
 public:
  /// Returns for how long the news have been these; called after each pause.
  std::chrono::milliseconds after(std::chrono::milliseconds pause, std::string news) {
    length_ = news == news_ ? length_ + pause : std::chrono::milliseconds(0);
    news_ = std::move(news);
    return length_;
  }

 private:
  std::chrono::milliseconds length_{0};
  std::string news_;
};

/// Texts that processes exchange through a store, beside collectives of other threads. Process 0
/// waits for a list of keys and puts all texts into one key, for which the others wait: 4 requests
/// a process and exchange, and no key of an exchange outlives the next one.
class TextExchange {
 public:
  /// Called with the processes that are waited for, each time that they have not come for a while;
  /// throws to end the wait.
  using Missing = std::function<void(const std::vector<int64_t>& ranks)>;

  /// Returns for how long a process waits for one that makes no progress. Process 0 finds out which
  /// one that is, and the others, which wait for process 0, leave it time to say so.
  static std::chrono::seconds limit(int64_t rank, std::chrono::seconds patience) {
    return rank == 0 ? patience : 3 * patience / 2;
  }

  TextExchange(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size);

  /// Returns the texts of all processes by rank. All of them call it equally often. Throws what
  /// `missing` does, which is called every `pause`, and what the store throws.
  std::vector<std::string> operator()(const std::string& text, std::chrono::milliseconds pause,
                                      const Missing& missing);

 private:
  std::vector<std::string> gather(const std::string& text, const std::string& key,
                                  std::chrono::milliseconds pause, const Missing& missing);

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_, size_, exchanges_ = 0;
};

/// Tells the other processes through the store what this one does and why it ended, and names those
/// that are missing after a collective failed. A thread tells it and learns that another ends; it
/// has a client of the store for itself.
class Processes::Watch {
 public:
  Watch(c10::intrusive_ptr<c10d::Store> store, const Launch& launch);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void set_activity(const std::string& activity);
  void progress() noexcept { ++progress_; }
  /// The work of all is done: one that ends from now on is not lost.
  void succeed() noexcept { fails_ = true; }
  void warn(std::string_view text);
  /// Tells at once what is to be told; with `all`, also the warnings that process 0 may share.
  void publish(bool all);
  bool tell_failure(const std::string& message) noexcept;
  std::string explain(const std::string& message);
  /// Returns what explain() does where the store does not answer.
  std::string without_store();
  void when_another_fails(std::function<void()> action);
  std::vector<std::string> exchange(const std::string& text, std::chrono::seconds patience);
  void leave() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* kStart = "the start";

  void run();
  /// Returns whether nothing was told for a while.
  bool is_due() const;
  std::string text_at(const std::string& key);
  /// Returns what another process did when it last told: {count of its progress, activity}.
  std::pair<std::string, std::string> told_by(int64_t rank);
  std::string name_of(int64_t rank);
  void tell_end();
  std::string activity();
  bool is_first_to_warn(const std::string& text);

  c10::intrusive_ptr<c10d::Store> store_, publisher_;
  TextExchange exchange_;
  int64_t rank_, size_;
  bool serves_store_;
  std::string leader_;  ///< Process 0, with its machine and pid.
  std::atomic<int64_t> progress_ = 0;
  std::atomic<bool> fails_ = false;  ///< Or has succeeded: nothing acts any more.
  std::mutex mutex_;  ///< Of the members below; not held while the store is waited for.
  std::condition_variable ends_;
  bool ending_ = false;
  std::string activity_ = kStart;
  Clock::time_point published_ = {};
  std::deque<std::pair<Clock::time_point, std::string>> warnings_;
  std::function<void()> when_another_fails_;
  std::mutex publishing_;  ///< Of publisher_, told_ and warned_.
  std::string told_;
  std::deque<std::string> warned_;  ///< Keys of this one's warnings, the oldest first.
  std::thread thread_;
};

}  // namespace moesaic
