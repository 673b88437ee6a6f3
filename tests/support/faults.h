// SPDX-License-Identifier: Apache-2.0
// Actions whose n-th system call fails, or where the process ends, by the library faults.so, which
// says what there is (support/faults/faults.cpp).
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

// The library has to be there when a process starts, and to wrap what a sanitizer wraps too.
#ifdef __SANITIZE_ADDRESS__
#define NEEDS_FAULTS() GTEST_SKIP() << "AddressSanitizer wants to be the first library"
#else
#define NEEDS_FAULTS() \
  if (!::moesaic::test::has_faults()) return ::moesaic::test::run_again_with_faults()
#endif

namespace moesaic::test {

struct Fault {
  std::string call, effect;
};

struct Outcome {
  bool fired = false;  ///< Whether there was an n-th call.
  int exit_code = 0;   ///< As the program's, 128 + N after signal N.
  std::string error;   ///< What was thrown.
};

bool has_faults();

/// Runs the current test in a process of its own with faults.so and one compute thread, so that it
/// can fork(). The test fails if it fails there.
void run_again_with_faults();

/// Runs `action` in a child process in which the n-th call on a file below `folder` meets `fault`.
Outcome run_with_fault(const Fault& fault, int n, const std::filesystem::path& folder,
                       const std::function<void()>& action);

/// Calls `prepare()`, runs `action` with the fault at the n-th call and calls `check(outcome)`, for
/// n = 1, 2, ... up to the number of calls. An error must be one line of text. Returns that number.
int for_every_call(const Fault& fault, const std::filesystem::path& folder,
                   const std::function<void()>& prepare, const std::function<void()>& action,
                   const std::function<void(const Outcome&)>& check);

}  // namespace moesaic::test
