// SPDX-License-Identifier: Apache-2.0
#include "monitor.h"

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <span>

#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;
constexpr auto kPeriod = 1s;      // In which another one's end is asked for.
constexpr auto kNews = 250ms;     // In which news are told at most once.
constexpr auto kAnswer = 3s;      // In which a process that lives says that it ends, too.
constexpr auto kFarewell = 5s;    // In which all that live have read what the store has to say.
constexpr size_t kWarnings = 64;  // That a process remembers in the store, of its own.

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

std::string hash_of(const std::string& text) {
  return sha256_hex(std::as_bytes(std::span(text))).substr(0, 32);
}

std::string numbered(const char* key, int64_t rank) {
  return fmt::format("{}/{}", key, rank);
}

using Bytes = std::vector<uint8_t>;

std::string key_of(int64_t exchange) {
  return "exchange/" + std::to_string(exchange) + "/";
}

/// Returns whether the keys are there within `pause`. Throws what the store does where it is gone.
bool come(c10d::Store& store, const std::vector<std::string>& keys,
          std::chrono::milliseconds pause) {
  try {
    store.wait(keys, pause);
    return true;
  } catch (const c10::DistStoreError&) {
    return false;  // Not in time.
  }
}

// No value of a store may be empty. A text may hold any bytes, such as those of a path: MessagePack
// keeps them as they are.
Bytes packed(const std::vector<std::string>& texts) {
  return nlohmann::json::to_msgpack(texts);
}

std::vector<std::string> unpacked(const Bytes& bytes) {
  return nlohmann::json::from_msgpack(bytes).get<std::vector<std::string>>();
}

}  // namespace

ProcessMesh::Monitor::Monitor(c10::intrusive_ptr<c10d::Store> store, const Launch& launch)
    : store_(std::move(store)),
      publisher_(store_->clone()),
      exchange_(store_->clone(), launch.rank, launch.world_size),  // Another thread waits in it.
      rank_(launch.rank),
      size_(launch.world_size),
      serves_store_(launch.rank == 0 && !launch.has_external_store) {
  store_->set(numbered("who", rank_), fmt::format("{}, pid {}", host_name(), getpid()));
  publish(/*includes_all_warnings=*/false);
  store_->wait({"who/0"});
  rank_zero_ = name_of(0);
  thread_ = std::thread([this] { run(); });
}

ProcessMesh::Monitor::~Monitor() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void ProcessMesh::Monitor::run() {
  for (bool peer_ended = false; !peer_ended;) {
    {
      std::unique_lock lock(mutex_);
      ends_.wait_for(lock, kPeriod, [this] { return is_ending_ || is_publish_due(); });
      if (is_ending_) return;
    }
    try {
      publish(/*includes_all_warnings=*/false);
      const std::lock_guard lock(publishing_);
      peer_ended = publisher_->check({"ends"});
      // Its collectives may not miss the other yet, but it lives.
      if (peer_ended) publisher_->set(numbered("ends", rank_), "true");
    } catch (const std::exception&) {
      peer_ended = true;  // The one that serves the store.
    }
  }
  std::function<void()> action;
  {
    std::unique_lock lock(mutex_);
    ends_.wait(lock, [this] { return is_ending_ || on_peer_failure_; });
    if (!is_ending_) action = on_peer_failure_;
  }
  if (action && !fails_) action();
}

void ProcessMesh::Monitor::publish(bool includes_all_warnings) {
  std::string now;
  std::vector<std::string> warnings;
  {
    const std::lock_guard lock(mutex_);
    now = fmt::format("{} {}", progress_.load(), activity_);
    published_ = Clock::now();
    const auto latest = published_ - (includes_all_warnings ? 0s : kAnswer);
    for (; !warnings_.empty() && warnings_.front().first <= latest; warnings_.pop_front()) {
      warnings.push_back(std::move(warnings_.front().second));
    }
  }
  const std::lock_guard lock(publishing_);
  for (const std::string& text : warnings) {
    if (is_first_to_warn(text)) write_log_line(LogLevel::warning, text);
  }
  if (std::exchange(published_status_, now) != now) publisher_->set(numbered("doing", rank_), now);
}

bool ProcessMesh::Monitor::is_first_to_warn(const std::string& text) {
  try {
    const std::string key = "warned/" + hash_of(text);
    if (publisher_->add(key, 1) > 1) return false;
    warned_.push_back(key);
    if (warned_.size() > kWarnings) {
      publisher_->deleteKey(warned_.front());
      warned_.pop_front();
    }
    return true;
  } catch (const std::exception&) {
    return true;  // Nobody else can say it.
  }
}

// Process 0 warns at once, and another some seconds later, unless process 0 has said the same.
void ProcessMesh::Monitor::warn(std::string_view text) {
  if (rank_ == 0) {
    const std::lock_guard lock(publishing_);
    if (is_first_to_warn(std::string(text))) write_log_line(LogLevel::warning, text);
    return;
  }
  const std::lock_guard lock(mutex_);
  warnings_.emplace_back(Clock::now(), text);
}

void ProcessMesh::Monitor::set_activity(const std::string& activity) {
  const std::lock_guard lock(mutex_);
  activity_ = activity;
  if (is_publish_due()) ends_.notify_all();
}

bool ProcessMesh::Monitor::is_publish_due() const {
  return Clock::now() - published_ >= kNews;
}

std::string ProcessMesh::Monitor::activity() {
  const std::lock_guard lock(mutex_);
  return activity_;
}

void ProcessMesh::Monitor::on_peer_failure(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  on_peer_failure_ = std::move(action);
  ends_.notify_all();
}

std::string ProcessMesh::Monitor::text_at(const std::string& key) {
  return store_->check({key}) ? store_->get_to_str(key) : std::string();
}

std::pair<std::string, std::string> ProcessMesh::Monitor::last_status_of(int64_t rank) {
  const std::string text = text_at(numbered("doing", rank));
  if (text.empty()) return {"", kStart};
  const size_t space = text.find(' ');
  return {text.substr(0, space), text.substr(space + 1)};
}

std::string ProcessMesh::Monitor::name_of(int64_t rank) {
  const std::string who = text_at(numbered("who", rank));
  return fmt::format("process {}{}", rank, who.empty() ? "" : " (" + who + ")");
}

std::vector<std::string> ProcessMesh::Monitor::exchange(const std::string& text,
                                                        std::chrono::seconds timeout) try {
  // Process 0 finds out who makes no progress; the others, which wait for it, let it say so.
  const std::chrono::seconds limit = rank_ == 0 ? timeout : 3 * timeout / 2;
  const auto pause = std::clamp<std::chrono::milliseconds>(timeout / 8, 100ms, 5000ms);
  // In pauses between calls: time in which all processes were stopped does not count.
  std::chrono::milliseconds idle(0);
  std::string before;
  return exchange_(text, pause, [&](const std::vector<int64_t>& missing) {
    if (store_->check({"ends"})) throw PeerFailure("another process ends");
    std::string now;
    for (const int64_t rank : missing) now += last_status_of(rank).first + " ";
    idle = now == std::exchange(before, now) ? idle + pause : 0ms;
    if (idle == 0ms) return progress();  // Of those that wait for this one, too.
    if (idle < limit) return;
    fail("{} made no progress in a save for {}; check its disk, or raise parallel.timeout",
         name_of(missing.front()), count_text(timeout.count(), "second"));
  });
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {
  throw PeerFailure(error.what());
}

void ProcessMesh::Monitor::publish_end() {
  fails_ = true;
  store_->set("ends", "true");
  store_->set(numbered("ends", rank_), "true");
}

bool ProcessMesh::Monitor::publish_failure(const std::string& message) {
  store_->set("failed", "true");
  publish_end();
  return store_->add("said/" + hash_of(message), 1) == 1;
}

std::string ProcessMesh::Monitor::describe_failure(const std::string& message) {
  publish_end();
  if (store_->check({"failed"}) || store_->add("explained", 1) > 1) return {};
  std::vector<std::string> ends;
  for (int64_t rank = 0; rank < size_; ++rank) ends.push_back(numbered("ends", rank));
  try {
    store_->wait(ends, kAnswer);
  } catch (const c10::DistStoreError&) {
    // At least one of them is missing.
  }
  if (store_->check({"failed"})) return {};  // It has said why.
  std::string late;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const std::string at = last_status_of(rank).second;
    if (!store_->check({numbered("ends", rank)})) {
      return fmt::format("{} failed near {}: it was killed, stopped, or its machine was lost",
                         name_of(rank), at);
    }
    if (at != activity())
      late += fmt::format("{}process {} is at {}", late.empty() ? "" : ", ", rank, at);
  }
  return fmt::format("the processes are out of step at {}: {}", activity(),
                     late.empty() ? one_line(message, 300) : late);
}

// Nobody can tell which of the others says it, so each does.
std::string ProcessMesh::Monitor::without_store() {
  return fmt::format("{}, or the launcher that serves the store, failed near {}", rank_zero_,
                     activity());
}

void ProcessMesh::Monitor::shut_down_after_failure() {
  publish(/*includes_all_warnings=*/true);
  store_->set(numbered("left", rank_), "true");
  if (!serves_store_) return;
  std::vector<std::string> left;
  for (int64_t rank = 1; rank < size_; ++rank) left.push_back(numbered("left", rank));
  store_->wait(left, kFarewell);
}

std::vector<std::string> StoreAllGather::operator()(const std::string& text,
                                                    std::chrono::milliseconds pause,
                                                    const OnMissing& missing) {
  const std::string key = key_of(exchanges_++);
  if (rank_ == 0) return gather(text, key, pause, missing);
  store_->set(key + std::to_string(rank_), packed({text}));
  const std::string all = key + "all";
  while (!come(*store_, {all}, pause)) missing({0});
  return unpacked(store_->get(all));
}

std::vector<std::string> StoreAllGather::gather(const std::string& text, const std::string& key,
                                                std::chrono::milliseconds pause,
                                                const OnMissing& missing) {
  std::vector<std::string> keys, texts = {text};
  for (int64_t rank = 1; rank < size_; ++rank) keys.push_back(key + std::to_string(rank));
  while (!come(*store_, keys, pause)) {
    std::vector<int64_t> ranks;
    for (int64_t rank = 1; rank < size_; ++rank) {
      if (!store_->check({keys[static_cast<size_t>(rank - 1)]})) ranks.push_back(rank);
    }
    if (!ranks.empty()) missing(ranks);
  }
  for (const Bytes& bytes : store_->multiGet(keys)) texts.push_back(unpacked(bytes).at(0));
  store_->set(key + "all", packed(texts));
  for (const std::string& own : keys) store_->deleteKey(own);
  // All of them came to this exchange, so they have read that before.
  if (exchanges_ > 1) store_->deleteKey(key_of(exchanges_ - 2) + "all");
  return texts;
}

}  // namespace moesaic
