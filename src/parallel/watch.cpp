// SPDX-License-Identifier: Apache-2.0
#include "watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "moesaic/base/text.h"
#include "moesaic/parallel/lost_process.h"

namespace moesaic {
namespace {

using std::chrono_literals::operator""s;
constexpr std::chrono::milliseconds kBeat = 1s;  // In parts of which others wait.
constexpr auto kStale = kBeat / 4;  // Age of a beat after which a new activity is told at once.
constexpr auto kSilence = 3s;       // After which the one of all that has no beat was lost.

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

/// A beat is "COUNT PROGRESS ACTIVITY"; returns what follows the first `words`.
std::string after_words(std::string text, int words) {
  for (; words > 0; --words) text.erase(0, std::min(text.size(), text.find(' ')) + 1);
  return text;
}

std::string activity_in(const std::string& beat) {
  return after_words(beat, 2);
}

std::string progress_in(const std::string& beat) {
  const std::string text = after_words(beat, 1);
  return text.substr(0, text.find(' '));
}

}  // namespace

Processes::Watch::Watch(c10::intrusive_ptr<c10d::Store> store, const Launch& launch,
                        std::chrono::seconds timeout)
    : store_(std::move(store)),
      rank_(launch.rank),
      size_(launch.size),
      lost_after_(std::max(12s, timeout / 4)),
      serves_store_(launch.rank == 0 && !launch.store_is_served),
      first_of_machine_(launch.local_rank == 0),
      first_at_work_(launch.store_is_served ? 0 : 1) {
  const std::string who = host_name() + ", pid " + std::to_string(getpid());
  store_->set("who/" + std::to_string(rank_), bytes_of(who));
  beat();
  const std::vector<uint8_t> leader = store_->get("who/0");
  leader_ = {leader.begin(), leader.end()};
  thread_ = std::thread([this] { run(); });
  guard_ = std::jthread([this](const std::stop_token& stop) { guard(stop); });
}

Processes::Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

/// Counts time by its calls, each of which adds a second at most: where all processes were stopped
/// for a while, none was lost.
class Processes::Watch::Pulse {
 public:
  Pulse(Watch& watch, int64_t rank) : watch_(watch), rank_(rank) {}

  int64_t rank() const { return rank_; }

  /// Returns whether it has not been heard of for a while, or said that it failed.
  bool is_lost() {
    const auto now = std::chrono::steady_clock::now();
    const auto passed = std::min<Duration>(now - std::exchange(asked_, now), kBeat);
    silent_ += passed;
    idle_ += passed;
    if (const std::string beat = watch_.beat_of(rank_); beat != last_) {
      if (progress_in(beat) != progress_in(last_)) idle_ = {};
      last_ = beat;
      silent_ = {};
    }
    const int64_t quarters = last_.empty() ? 4 : 1;  // It may not have begun.
    return silent_ > quarters * watch_.lost_after_ ||
           watch_.store_->check({"failed/" + std::to_string(rank_)});
  }

  /// Returns whether it went on beating for so long without progress: one that is dead is_lost().
  bool stands_still(std::chrono::seconds patience) const { return idle_ - silent_ > patience; }

 private:
  using Duration = std::chrono::steady_clock::duration;

  Watch& watch_;
  int64_t rank_;
  std::string last_;
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  Duration silent_ = {}, idle_ = {};
};

void Processes::Watch::run() {
  std::unique_lock lock(mutex_);
  std::optional<Pulse> next;
  while (!ends_.wait_for(lock, kBeat, [this] { return ending_; })) {
    try {
      beat();
      const int64_t rank = at_work_from((rank_ + 1) % size_);
      if (!next || next->rank() != rank) next.emplace(*this, rank);
      first_at_work_ = at_work_from(first_at_work_);
      if (next->is_lost()) missed_ = rank;
      if (fails_ || (missed_ == kNobody && !store_->check({"told"}))) continue;
    } catch (const std::exception&) {
      continue;  // Until the guard misses the beats.
    }
    lock.unlock();
    act();
    lock.lock();
  }
}

void Processes::Watch::guard(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any ends;
  std::unique_lock lock(mutex);
  std::chrono::milliseconds silent(0);
  int64_t answered = 0;
  while (!ends.wait_for(lock, stop, kBeat, [&] { return stop.stop_requested(); })) {
    const int64_t before = std::exchange(answered, beats_.load());
    silent = answered == before ? silent + kBeat : 0s;
    if (silent > lost_after_ && !fails_) act();
  }
}

void Processes::Watch::act() const {
  std::function<void()> action;
  {
    const std::lock_guard lock(text_mutex_);
    action = when_another_fails_;
  }
  if (action) action();
}

int64_t Processes::Watch::at_work_from(int64_t rank) {
  while (rank != rank_ && is_done(rank)) rank = (rank + 1) % size_;
  return rank;
}

void Processes::Watch::beat() {
  store_->set("beat/" + std::to_string(rank_),
              bytes_of(fmt::format("{} {} {}", beats_.load(), progress_.load(), activity_)));
  ++beats_;
  last_beat_ = std::chrono::steady_clock::now();
}

void Processes::Watch::set_activity(const std::string& activity) {
  const std::lock_guard lock(mutex_);
  {
    const std::lock_guard text_lock(text_mutex_);
    activity_ = activity;
  }
  if (std::chrono::steady_clock::now() - last_beat_ < kStale) return;
  try {
    beat();
  } catch (const std::exception&) {
    // The store is gone, which the guard finds out from the missing beats.
  }
}

bool Processes::Watch::tell_failure(const std::string& message) noexcept {
  fails_ = true;
  try {
    const std::unique_lock lock = lock_soon();
    if (!lock.owns_lock()) return speaks_alone();
    store_->set("failed/" + std::to_string(rank_), bytes_of(one_line(message, 1000)));
    return is_first_to_tell();
  } catch (const std::exception&) {
    return speaks_alone();  // The others find out from this process' end.
  }
}

std::unique_lock<std::mutex> Processes::Watch::lock_soon() {
  const auto latest = std::chrono::steady_clock::now() + kSilence;
  std::unique_lock lock(mutex_, std::try_to_lock);
  while (!lock.owns_lock() && std::chrono::steady_clock::now() < latest) {
    std::this_thread::sleep_for(kBeat / 20);
    std::ignore = lock.try_lock();
  }
  return lock;
}

bool Processes::Watch::is_first_to_tell() {
  return store_->add("told", 1) == 1;
}

std::string Processes::Watch::text_at(const std::string& key) {
  if (!store_->check({key})) return {};
  const std::vector<uint8_t> bytes = store_->get(key);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> Processes::Watch::exchange(const std::string& text,
                                                    std::chrono::seconds patience) try {
  std::unique_lock lock(mutex_);
  const std::string key = "exchange/" + std::to_string(exchanges_++) + "/";
  store_->set(key + std::to_string(rank_), bytes_of(text + "."));  // No value may be empty.
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < size_; ++rank) {
    Pulse pulse(*this, rank);
    while (!store_->check({key + std::to_string(rank)})) {
      if (pulse.is_lost())
        throw LostProcess("process " + std::to_string(rank) + " does not answer");
      if (pulse.stands_still(patience)) {
        fail(
            "process {} ({}) made no progress in a save for {}; does its disk answer? The limit "
            "is parallel.timeout",
            rank, text_at("who/" + std::to_string(rank)), count_text(patience.count(), "second"));
      }
      ends_.wait_for(lock, kBeat / 20);
    }
    texts.push_back(text_at(key + std::to_string(rank)));
    texts.back().pop_back();
  }
  return texts;
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {
  throw LostProcess(error.what());
}

void Processes::Watch::leave() noexcept {
  try {
    const auto latest = std::chrono::steady_clock::now() + kSilence;
    std::unique_lock lock = lock_soon();
    if (!lock.owns_lock()) return;
    store_->set("left/" + std::to_string(rank_), bytes_of("left"));
    if (!serves_store_) return;
    for (int64_t rank = 1; rank < size_; ++rank) {
      while (!store_->check({"left/" + std::to_string(rank)})) {
        if (std::chrono::steady_clock::now() > latest) return;
        ends_.wait_for(lock, kBeat / 4);
      }
    }
  } catch (const std::exception&) {
    // Nobody is left to wait for.
  }
}

void Processes::Watch::finish() try {
  std::unique_lock lock(mutex_);
  for (int64_t rank = 1; rank_ == 0 && rank < size_; ++rank) {
    Pulse pulse(*this, rank);
    while (!is_done(rank)) {
      if (pulse.is_lost()) {
        throw LostProcess("process " + std::to_string(rank) + " ended before its work");
      }
      ends_.wait_for(lock, kBeat / 4);
    }
  }
  store_->set("done/" + std::to_string(rank_), bytes_of("done"));
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {
  throw LostProcess(error.what());
}

std::string Processes::Watch::without_store() const {
  if (!speaks_alone()) return {};
  const std::lock_guard lock(text_mutex_);
  return "process 0 (" + leader_ + "), or the launcher by which the processes met, was lost near " +
         activity_;
}

void Processes::Watch::when_another_fails(std::function<void()> action) {
  const std::lock_guard lock(text_mutex_);
  when_another_fails_ = std::move(action);
}

std::string Processes::Watch::explain(const std::string& message) try {
  const auto silence_ends = std::chrono::steady_clock::now() + kSilence;
  std::unique_lock lock(mutex_);
  if (store_->check({"told"})) return {};  // By the one that failed, or that missed it first.
  std::vector<std::string> before;
  for (int64_t rank = 0; rank < size_; ++rank) before.push_back(beat_of(rank));
  while (std::chrono::steady_clock::now() < silence_ends) {
    if (store_->check({"told"})) return {};
    ends_.wait_for(lock, kBeat / 2);
    beat();
  }
  fails_ = true;
  if (!is_first_to_tell()) return {};
  for (int64_t rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || is_done(rank)) continue;
    if (beat_of(rank) != before[static_cast<size_t>(rank)]) continue;
    return "process " + std::to_string(rank) + " (" + text_at("who/" + std::to_string(rank)) +
           ") was lost near " + activity_in(beat_of(rank)) +
           ": it was killed, stopped, or its machine is gone";
  }
  if (missed_ != kNobody) {
    return fmt::format("process {} ({}) was not heard of for {}", missed_,
                       text_at("who/" + std::to_string(missed_)),
                       count_text(lost_after_.count(), "second"));
  }
  std::string late;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const std::string activity = activity_in(beat_of(rank));
    if (activity == activity_) continue;
    late += (late.empty() ? "" : ", ") + std::string("process ") + std::to_string(rank) +
            " is at " + activity;
  }
  return "the processes do not come together at " + activity_ + ": " +
         (late.empty() ? one_line(message, 300) : late);
} catch (const std::exception&) {
  return without_store();
}

}  // namespace moesaic
