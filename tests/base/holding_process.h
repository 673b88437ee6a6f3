// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace moesaic::test {

/// Another process that holds what `make()` returns until it is killed.
class HoldingProcess {
 public:
  template <class F>
  explicit HoldingProcess(F&& make) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    id_ = ::fork();
    if (id_ == 0) {
      [[maybe_unused]] const auto held = make();
      if (::write(pipe[1], "1", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(pipe[1]);
    char ready = 0;
    EXPECT_EQ(::read(pipe[0], &ready, 1), 1) << "it ended early";
    ::close(pipe[0]);
  }
  HoldingProcess(const HoldingProcess&) = delete;
  HoldingProcess& operator=(const HoldingProcess&) = delete;
  ~HoldingProcess() { kill(); }

  pid_t id() const { return id_; }

  /// Kills it, and returns when it is gone.
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    EXPECT_EQ(::waitpid(id_, nullptr, 0), id_);
    id_ = 0;
  }

 private:
  pid_t id_ = 0;
};

}  // namespace moesaic::test
