// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace moesaic {

/// During its lifetime, the first SIGINT, SIGTERM or SIGHUP is recorded and, where information is
/// logged, said in a line on standard error, so that work can stop at a safe point and save;
/// recorded only is a SIGPIPE of standard output or standard error, whose reader
/// has closed them. Those that follow within a few seconds change nothing: schedulers and launchers
/// signal a process and its group. A later one but SIGPIPE exits at once with kEndedAtOnce. SIGHUP
/// and SIGPIPE stay ignored where they were. The destructor restores the former handlers.
class StopSignal {
 public:
  /// The exit status of a process that saved nothing; no other end and no signal has it.
  static constexpr int kEndedAtOnce = 4;

  /// `again`: for how long further signals are taken for the same one. Throws Error (usage) if
  /// another instance is alive.
  explicit StopSignal(std::chrono::seconds again = std::chrono::seconds(5));
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  ~StopSignal();

  /// Returns whether a signal was received.
  bool requested() const noexcept { return number() != 0; }
  /// Returns the signal, or 0 if none was received.
  int number() const noexcept;
};

}  // namespace moesaic
