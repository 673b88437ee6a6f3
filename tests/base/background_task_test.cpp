// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/background_task.h"

#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <thread>

#include "base/support.h"
#include "moesaic/base/signal.h"

namespace moesaic {
namespace {

TEST(BackgroundTask, RunsOnAThreadOfItsOwn) {
  BackgroundTask task;
  EXPECT_TRUE(task.poll());
  task.wait();
  std::thread::id there;
  std::promise<void> go;
  task.start([&] {
    go.get_future().wait();
    there = std::this_thread::get_id();
  });
  EXPECT_FALSE(task.poll());
  go.set_value();
  task.wait();
  EXPECT_TRUE(task.poll());
  EXPECT_NE(there, std::this_thread::get_id());
}

TEST(BackgroundTask, YieldsToTheThreadThatStartedIt) {
  const int own = getpriority(PRIO_PROCESS, 0);
  int there = own;
  BackgroundTask task;
  task.start([&] { there = getpriority(PRIO_PROCESS, 0); });
  task.wait();
  EXPECT_EQ(there, own);
  task.start([&] {
    task.lower_thread_priority();
    there = getpriority(PRIO_PROCESS, 0);
  });
  task.wait();
  EXPECT_EQ(there, std::min(own + 10, 19));
  task.lower_thread_priority();  // This thread is no task's.
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

TEST(BackgroundTask, AnErrorIsThrownOnceByWhateverComesNext) {
  BackgroundTask task;
  const auto failing = [] { fail("no space"); };
  task.start(failing);
  EXPECT_EQ(test::failure_of([&] { task.wait(); }), "no space");
  EXPECT_NO_THROW(task.wait());
  task.start(failing);
  EXPECT_EQ(test::failure_of([&] {
              while (!task.poll()) {
              }
            }),
            "no space");
  task.start(failing);
  bool ran = false;
  EXPECT_EQ(test::failure_of([&] { task.start([&] { ran = true; }); }), "no space");
  EXPECT_FALSE(ran);
  task.start([&] { ran = true; });
  task.wait();
  EXPECT_TRUE(ran);
}

TEST(BackgroundTask, ASignalToEndLetsItFinish) {
  const StopSignal stop;
  BackgroundTask task;
  bool blocked = false, finished = false;
  std::promise<void> signalled;
  task.start([&] {
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    blocked = ::sigismember(&mask, SIGTERM) == 1 && ::sigismember(&mask, SIGINT) == 1;
    signalled.get_future().wait();
    finished = true;
  });
  std::raise(SIGTERM);
  EXPECT_EQ(stop.number(), SIGTERM);
  signalled.set_value();
  task.wait();
  EXPECT_TRUE(blocked);
  EXPECT_TRUE(finished);
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_FALSE(::sigismember(&mask, SIGTERM));
}

}  // namespace
}  // namespace moesaic
