// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/signal.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "moesaic/base/error.h"

namespace moesaic {
namespace {

constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};

// These are at file scope, since a handler takes no user argument; only StopSignal uses them.
std::atomic<bool> active{false};
std::atomic<int> received{0};
std::atomic<int64_t> first{0};  // When it came, in nanoseconds; 0 before.
int64_t again_within = 0;       // Nanoseconds.
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a handler may only use lock-free atomics");
std::array<struct sigaction, kSignals.size()> former;

extern "C" void remember(int number) {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  int64_t before = 0;
  if (first.compare_exchange_strong(before, now)) {
    received = number;
  } else if (now - before >= again_within) {
    constexpr std::string_view kText = "error: another signal ended this before it was saved\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
    ::_exit(StopSignal::kEndedAtOnce);
  }
}

}  // namespace

StopSignal::StopSignal(std::chrono::seconds again) {
  if (active.exchange(true)) fail_usage("StopSignal: another one is alive");
  received = 0;
  first = 0;
  again_within = std::chrono::nanoseconds(again).count();
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  // The handlers are also installed if a shell started us with SIGINT ignored (`program &` in a
  // script), so that a signal sent on purpose still saves the work.
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &former[i]);
  // `nohup` ignores SIGHUP so that the work outlives its terminal.
  struct sigaction& hang_up = former.back();
  if (hang_up.sa_handler == SIG_IGN) ::sigaction(SIGHUP, &hang_up, nullptr);
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &former[i], nullptr);
  active = false;
}

int StopSignal::number() const noexcept {
  return received;
}

}  // namespace moesaic
