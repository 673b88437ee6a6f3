// SPDX-License-Identifier: Apache-2.0
#include "watch.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <vector>

#include "moesaic/base/text.h"
#include "moesaic/parallel/lost_process.h"

namespace moesaic {
namespace {

using std::chrono_literals::operator""s;
constexpr auto kBeat = 1s;
constexpr auto kSilence = 4s;  // After which a process without a beat is dead or stopped.

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

/// A beat is "COUNT ACTIVITY"; returns the activity.
std::string activity_in(const std::string& beat) {
  return beat.substr(std::min(beat.size(), beat.find(' ') + 1));
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
    } catch (const std::exception&) {
      return;  // The store is gone; the next collective says so.
    }
  }
}

void Processes::Watch::beat() {
  store_->set("beat/" + std::to_string(rank_),
              bytes_of(std::to_string(++beats_) + " " + activity_));
}

void Processes::Watch::set_activity(const std::string& activity) {
  const std::lock_guard lock(mutex_);
  activity_ = activity;
}

bool Processes::Watch::tell_failure(const std::string& message) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    store_->set("failed/" + std::to_string(rank_), bytes_of(one_line(message, 1000)));
    return is_first_to_tell();
  } catch (const std::exception&) {
    return speaks_alone_;  // The others find out from this process' end.
  }
}

bool Processes::Watch::is_first_to_tell() {
  return store_->add("told", 1) == 1;
}

std::string Processes::Watch::text_at(const std::string& key) {
  if (!store_->check({key})) return {};
  const std::vector<uint8_t> bytes = store_->get(key);
  return {bytes.begin(), bytes.end()};
}

void Processes::Watch::leave() noexcept {
  try {
    const auto latest = std::chrono::steady_clock::now() + 2 * kSilence;
    std::unique_lock lock(mutex_);
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

void Processes::Watch::finish() {
  const std::string key = "done/";
  std::unique_lock lock(mutex_);
  store_->set(key + std::to_string(rank_), bytes_of("done"));
  if (rank_ != 0) return;
  for (int64_t rank = 1; rank < size_; ++rank) {
    std::string last;
    auto heard = std::chrono::steady_clock::now();
    while (!store_->check({key + std::to_string(rank)})) {
      if (const std::string now = beat_of(rank); now != last) {
        last = now;
        heard = std::chrono::steady_clock::now();
      }
      const bool silent = std::chrono::steady_clock::now() - heard > 3 * kSilence;
      if (silent || store_->check({"failed/" + std::to_string(rank)})) {
        throw LostProcess("process " + std::to_string(rank) + " ended before its work");
      }
      ends_.wait_for(lock, kBeat / 4);
    }
  }
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
  if (!is_first_to_tell()) return {};
  for (int64_t rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || beat_of(rank) != before[static_cast<size_t>(rank)]) continue;
    return "process " + std::to_string(rank) + " (" + text_at("who/" + std::to_string(rank)) +
           ") was lost at " + activity_in(beat_of(rank)) +
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
  if (!speaks_alone_) return {};
  return "process 0, or the launcher, which serves the store of the processes, was lost at " +
         activity_;
}

}  // namespace moesaic
