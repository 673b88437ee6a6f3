// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

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

}  // namespace moesaic
