// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/signal.h"

#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/terminal.h"

namespace moesaic {
namespace {

constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};

// These are at file scope, since a handler takes no user argument; only StopSignal uses them.
std::atomic<bool> active{false};
std::atomic<int> received{0};
std::atomic<int64_t> first{0};  // When it came, in nanoseconds; 0 before.
int64_t again_within = 0;       // Nanoseconds.
std::string notice;             // What the first one prints; made before a handler is installed.
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "a handler may only use lock-free atomics");
std::array<struct sigaction, kSignals.size()> former;

/// Returns whether nobody reads what this process prints any more. Other pipes and sockets raise
/// SIGPIPE too, and who writes to them gets the error.
bool output_is_closed() {
  const int error = errno;
  std::array<pollfd, 2> outputs = {{{STDOUT_FILENO, 0, 0}, {STDERR_FILENO, 0, 0}}};
  ::poll(outputs.data(), outputs.size(), 0);
  errno = error;
  constexpr int kClosed = POLLERR | POLLHUP;
  return ((outputs[0].revents | outputs[1].revents) & kClosed) != 0;
}

extern "C" void remember(int number) {
  if (number == SIGPIPE && !output_is_closed()) return;
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  int64_t before = 0;
  if (number == SIGPIPE) {  // Each line raises it; the next other signal is the first.
    int none = 0;
    received.compare_exchange_strong(none, number);
  } else if (first.compare_exchange_strong(before, now)) {
    received = number;  // Before anything is printed, which may raise SIGPIPE.
    const int error = errno;
    pollfd output = {STDERR_FILENO, POLLOUT, 0};  // A full pipe must not hold up what saves.
    if (::poll(&output, 1, 0) == 1 && output.revents == POLLOUT) {
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, notice.data(), notice.size());
    }
    errno = error;
  } else if (now - before >= again_within) {
    constexpr std::string_view kText = "error: another signal ended the program before saving\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
    ::_exit(StopSignal::kForcedExitCode);
  }
}

/// Returns what to say at the first signal. Of several processes, and where only warnings are
/// wanted, this one may be silent.
std::string first_notice(std::chrono::seconds repeat_window) {
  if (log_threshold() > LogLevel::info) return "";
  return fmt::format("{}stopping; a second signal{} ends the program at once, without saving\n",
                     is_terminal(stderr) ? "\r\x1b[K" : "",  // Clears a progress line.
                     repeat_window.count() == 0
                         ? ""
                         : fmt::format(", {} seconds from now or later,", repeat_window.count()));
}

}  // namespace

StopSignal::StopSignal(std::chrono::seconds repeat_window) {
  if (active.exchange(true)) fail_usage("StopSignal: another one is alive");
  notice = first_notice(repeat_window);
  received = 0;
  first = 0;
  again_within = std::chrono::nanoseconds(repeat_window).count();
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  // The handlers are also installed if a shell started us with SIGINT ignored (`program &` in a
  // script), so that a signal sent on purpose still saves the work.
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &action, &former[i]);
  // `nohup` ignores SIGHUP so that the work outlives its terminal; likewise whoever ignores SIGPIPE
  // wants it to outlive its reader.
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    const bool output = kSignals[i] == SIGHUP || kSignals[i] == SIGPIPE;
    if (output && former[i].sa_handler == SIG_IGN) ::sigaction(kSignals[i], &former[i], nullptr);
  }
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &former[i], nullptr);
  active = false;
}

int StopSignal::number() const noexcept {
  return received;
}

}  // namespace moesaic
