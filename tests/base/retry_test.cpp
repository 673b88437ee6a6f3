// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/retry.h"

#include <vector>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

/// Runs an action whose first `failures` calls throw `error`; counts the pauses in milliseconds.
template <class E>
struct Tried {
  Tried(int failures, const E& error, bool patient = true) {
    ::testing::internal::CaptureStderr();
    const auto action = [&] {
      if (calls++ < failures) throw error;
      return 7;
    };
    const SleepFunction pause = [&](std::chrono::milliseconds time) {
      pauses.push_back(time.count());
    };
    try {
      result = retry_io(action, patient ? pause : nullptr);
    } catch (const E& thrown) {
      message = thrown.what();
    }
    said = ::testing::internal::GetCapturedStderr();
  }

  int calls = 0, result = 0;
  std::vector<int64_t> pauses;
  std::string message, said;
};

TEST(Retry, AMomentaryErrorIsTriedAgainAndSaid) {
  const Tried tried(2, TransientError("a.png: cannot read: Input/output error"));
  EXPECT_EQ(tried.result, 7);
  EXPECT_THAT(tried.pauses, ElementsAre(100, 400));
  EXPECT_THAT(tried.said, HasSubstr("a.png: cannot read: Input/output error; retrying in 0.1 s"));
  EXPECT_THAT(tried.said, HasSubstr("in 0.4 s"));
}

TEST(Retry, OneThatStaysIsThrownAfterThreeTriesMore) {
  const Tried tried(9, TransientError("gone"));
  EXPECT_EQ(tried.calls, 4);
  EXPECT_THAT(tried.pauses, ElementsAre(100, 400, 1600));
  EXPECT_EQ(tried.message, "gone");
}

TEST(Retry, OtherErrorsAndImpatientCallersAreNot) {
  const Tried other(9, Error(ErrorKind::failure, "no image"));
  EXPECT_EQ(other.calls, 1);
  EXPECT_EQ(other.message, "no image");
  const Tried impatient(9, TransientError("gone"), /*patient=*/false);
  EXPECT_EQ(impatient.calls, 1);
  EXPECT_EQ(impatient.message, "gone");
  EXPECT_THAT(impatient.said, IsEmpty());
}

TEST(Retry, WhatIsForbiddenIsNotTriedAgain) {
  const auto calls_where = [](int error) {
    int calls = 0;
    ::testing::internal::CaptureStderr();
    const auto action = [&]() -> int {
      ++calls;
      fail_errno("a.png", "cannot open", error);
    };
    EXPECT_THROW(retry_io(action, [](std::chrono::milliseconds) {}), IoError);
    ::testing::internal::GetCapturedStderr();
    return calls;
  };
  for (const int error : {EIO, ESTALE, EINTR, EAGAIN, ETIMEDOUT, ENETDOWN, EHOSTUNREACH, ENOENT}) {
    EXPECT_EQ(calls_where(error), 4) << error;
  }
  for (const int error : {EACCES, EPERM, EROFS, EISDIR, ELOOP, ENAMETOOLONG, EMFILE, ENOMEM}) {
    EXPECT_EQ(calls_where(error), 1) << error;
  }
}

}  // namespace
}  // namespace moesaic
