// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace moesaic {

/// Ends work that a signal stopped.
struct Stopped {
  int signal = 0;
};

/// During its lifetime, the first SIGINT, SIGTERM or SIGHUP is recorded and, where information is
/// logged, said in a line on standard error, so that work can stop at a safe point and save;
/// recorded only is a SIGPIPE of standard output or standard error, whose reader has closed them.
/// Those that follow within a few seconds change nothing: schedulers and launchers signal a process
/// and its group. A later one but SIGPIPE exits at once with kForcedExitCode. SIGHUP and SIGPIPE
/// stay ignored where they were. The destructor restores the former handlers.
class StopSignal {
 public:
  /// The exit status of a process that saved nothing; no other end and no signal has it.
  static constexpr int kForcedExitCode = 4;

  /// `repeat_window`: time in which further signals count as the first one. Throws Error (usage) if
  /// another instance is alive.
  explicit StopSignal(std::chrono::seconds repeat_window = std::chrono::seconds(5));
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  /// Returns whether a signal was received.
  bool is_requested() const noexcept { return number() != 0; }
  /// Returns the signal, or 0 if none was received.
  int number() const noexcept;
  /// Throws Stopped if a signal was received.
  void check() const {
    if (is_requested()) throw Stopped{number()};
  }
};

}  // namespace moesaic
