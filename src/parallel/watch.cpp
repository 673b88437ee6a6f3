// SPDX-License-Identifier: Apache-2.0
#include "watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <tuple>
#include <vector>

#include "moesaic/base/text.h"
#include "moesaic/parallel/lost_process.h"

namespace moesaic {
namespace {

using std::chrono_literals::operator""s;
constexpr std::chrono::milliseconds kBeat = 1s;  // In parts of which others wait.
constexpr auto kStale = kBeat / 4;  // Age of a beat after which a new activity is told at once.
constexpr auto kSilence = 3s;       // After which a process without a beat is dead or stopped.

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

Processes::Watch::Watch(c10::intrusive_ptr<c10d::Store> store, const Launch& launch)
    : store_(std::move(store)),
      rank_(launch.rank),
      size_(launch.size),
      serves_store_(launch.rank == 0 && !launch.store_is_served),
      speaks_alone_(launch.rank == 1 || launch.local_rank == 0) {
  const std::string who = host_name() + ", pid " + std::to_string(getpid());
  store_->set("who/" + std::to_string(rank_), bytes_of(who));
  beat();
  thread_ = std::thread([this] { run(); });
}

Processes::Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void Processes::Watch::run() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kBeat, [this] { return ending_; })) {
    try {
      beat();
      if (fails_ || !when_another_fails_ || !store_->check({"told"})) continue;
    } catch (const std::exception&) {
      return;  // The store is gone; the next collective says so.
    }
    const std::function<void()> action = when_another_fails_;
    lock.unlock();
    return action();
  }
}

void Processes::Watch::beat() {
  store_->set("beat/" + std::to_string(rank_),
              bytes_of(fmt::format("{} {} {}", ++beats_, progress_.load(), activity_)));
  last_beat_ = std::chrono::steady_clock::now();
}

void Processes::Watch::set_activity(const std::string& activity) {
  const std::lock_guard lock(mutex_);
  activity_ = activity;
  if (std::chrono::steady_clock::now() - last_beat_ < kStale) return;
  try {
    beat();
  } catch (const std::exception&) {
    // The store is gone; the next collective says so.
  }
}

bool Processes::Watch::tell_failure(const std::string& message) noexcept {
  fails_ = true;
  try {
    const std::unique_lock lock = lock_soon();
    if (!lock.owns_lock()) return speaks_alone_;
    store_->set("failed/" + std::to_string(rank_), bytes_of(one_line(message, 1000)));
    return is_first_to_tell();
  } catch (const std::exception&) {
    return speaks_alone_;  // The others find out from this process' end.
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

class Processes::Watch::Pulse {
 public:
  Pulse(Watch& watch, int64_t rank) : watch_(watch), rank_(rank) {}

  /// Returns whether it has not been heard of for a while, or said that it failed.
  bool is_lost() {
    const auto now = std::chrono::steady_clock::now();
    if (const std::string beat = watch_.beat_of(rank_); beat != last_) {
      if (progress_in(beat) != progress_in(last_)) worked_ = now;
      last_ = beat;
      heard_ = now;
    }
    return now - heard_ > 4 * kSilence || watch_.store_->check({"failed/" + std::to_string(rank_)});
  }

  /// Returns whether it went on beating for so long without progress: one that is dead is_lost().
  bool stands_still(std::chrono::seconds patience) const { return heard_ - worked_ > patience; }

 private:
  Watch& watch_;
  int64_t rank_;
  std::string last_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now(), worked_ = heard_;
};

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
  store_->set("done/" + std::to_string(rank_), bytes_of("done"));
  if (rank_ != 0) return;
  for (int64_t rank = 1; rank < size_; ++rank) {
    Pulse pulse(*this, rank);
    while (!store_->check({"done/" + std::to_string(rank)})) {
      if (pulse.is_lost()) {
        throw LostProcess("process " + std::to_string(rank) + " ended before its work");
      }
      ends_.wait_for(lock, kBeat / 4);
    }
  }
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {
  throw LostProcess(error.what());
}

std::string Processes::Watch::without_store() const {
  if (!speaks_alone_) return {};
  return "process 0, or the launcher by which the processes met, was lost near " + activity_;
}

void Processes::Watch::when_another_fails(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  when_another_fails_ = std::move(action);
}

std::string Processes::Watch::explain(const std::string& message) try {
  const auto silence_ends = std::chrono::steady_clock::now() + kSilence;
  std::unique_lock lock(mutex_);
  std::vector<std::string> before;
  for (int64_t rank = 0; rank < size_; ++rank) before.push_back(beat_of(rank));
  while (std::chrono::steady_clock::now() < silence_ends) {
    for (int64_t rank = 0; rank < size_; ++rank) {
      if (!text_at("failed/" + std::to_string(rank)).empty()) return {};  // It said why itself.
    }
    ends_.wait_for(lock, kBeat / 2);
    beat();
  }
  fails_ = true;
  if (!is_first_to_tell()) return {};
  for (int64_t rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || beat_of(rank) != before[static_cast<size_t>(rank)]) continue;
    return "process " + std::to_string(rank) + " (" + text_at("who/" + std::to_string(rank)) +
           ") was lost near " + activity_in(beat_of(rank)) +
           ": it was killed, stopped, or its machine is gone";
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
