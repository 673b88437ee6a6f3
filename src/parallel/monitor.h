// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "moesaic/parallel/process_mesh.h"

namespace moesaic {

/// Texts that processes exchange through a store, beside collectives of other threads. Process 0
/// waits for a list of keys and puts all texts into one key, for which the others wait: 4 requests
/// a process and exchange, and no key of an exchange outlives the next one.
class StoreAllGather {
 public:
  /// Called with the processes that are waited for, each time that they have not come for a while;
  /// throws to end the wait.
  using OnMissing = std::function<void(const std::vector<int64_t>& ranks)>;

  StoreAllGather(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  /// Returns the texts of all processes by rank. All of them call it equally often. Throws what
  /// `missing` does, which is called every `pause`, and what the store throws.
  std::vector<std::string> operator()(const std::string& text, std::chrono::milliseconds pause,
                                      const OnMissing& missing);

 private:
  std::vector<std::string> gather(const std::string& text, const std::string& key,
                                  std::chrono::milliseconds pause, const OnMissing& missing);

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_, size_, exchanges_ = 0;
};

/// Tells the other processes through the store what this one does and why it ended, and names those
/// that are missing after a collective failed. A thread tells it and learns that another ends; it
/// has a client of the store for itself.
class ProcessMesh::Monitor {
 public:
  Monitor(c10::intrusive_ptr<c10d::Store> store, const Launch& launch);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  void set_activity(const std::string& activity);
  void progress() noexcept { ++progress_; }
  /// The work of all is done: one that ends from now on has not failed.
  void mark_done() noexcept { fails_ = true; }
  void warn(std::string_view text);
  /// Tells at once what is to be told; with `includes_all_warnings`, also the warnings that process
  /// 0 may share.
  void publish(bool includes_all_warnings);
  /// Returns whether no other process has said the same. Throws, like the next and
  /// shut_down_after_failure(), what the store does where it is gone.
  bool publish_failure(const std::string& message);
  std::string describe_failure(const std::string& message);
  /// Returns what describe_failure() does where the store does not answer.
  std::string without_store();
  void on_peer_failure(std::function<void()> action);
  std::vector<std::string> exchange(const std::string& text, std::chrono::seconds timeout);
  void shut_down_after_failure();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* kStart = "the start";

  void run();
  /// Returns whether nothing was told for a while.
  bool is_publish_due() const;
  std::string text_at(const std::string& key);
  /// Returns what another process did when it last told: {count of its progress, activity}.
  std::pair<std::string, std::string> last_status_of(int64_t rank);
  std::string name_of(int64_t rank);
  void publish_end();
  std::string activity();
  bool is_first_to_warn(const std::string& text);

  c10::intrusive_ptr<c10d::Store> store_, publisher_;
  StoreAllGather exchange_;
  int64_t rank_, size_;
  bool serves_store_;
  std::string rank_zero_;  ///< Process 0, with its machine and pid.
  std::atomic<int64_t> progress_ = 0;
  std::atomic<bool> fails_ = false;  ///< Or has succeeded: nothing acts any more.
  std::mutex mutex_;  ///< Of the members below; not held while the store is waited for.
  std::condition_variable ends_;
  bool is_ending_ = false;
  std::string activity_ = kStart;
  Clock::time_point published_ = {};
  std::deque<std::pair<Clock::time_point, std::string>> warnings_;
  std::function<void()> on_peer_failure_;
  std::mutex publishing_;  ///< Of publisher_, published_status_ and warned_.
  std::string published_status_;
  std::deque<std::string> warned_;  ///< Keys of this one's warnings, the oldest first.
  std::thread thread_;
};

}  // namespace moesaic
