// SPDX-License-Identifier: Apache-2.0
// Runs the program as a user would, and looks at what it prints and leaves.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <source_location>
#include <string>
#include <vector>

#define NEEDS_FASHION_MNIST()                                                \
  if (!::moesaic::testing::have_fashion_mnist()) {                           \
    GTEST_SKIP() << "needs Fashion-MNIST: moesaic data fetch fashion-mnist"; \
  }

// Skips the test in a build with AddressSanitizer; `why` is the message.
#ifdef __SANITIZE_ADDRESS__
#define SKIP_WITH_SANITIZER(why) GTEST_SKIP() << (why)
#else
#define SKIP_WITH_SANITIZER(why)
#endif

namespace moesaic::testing {

using Strings = std::vector<std::string>;

/// Returns the words of both, e.g. of a command.
Strings joined(Strings words, const Strings& more);

struct ProgramResult {
  int exit_code = 0;
  std::string out, err;
  uint64_t peak_bytes = 0;  ///< the most memory that it had at once
  /// what it wrote to files and sockets by write(2) and writev(2), as Gloo does; 0 where the kernel
  /// does not count
  uint64_t written_bytes = 0;

  /// Standard output as one JSON document; a test failure and null where it is none.
  nlohmann::json json() const;
};

struct ProgramOptions {
  Strings environment;  ///< NAME=value
  int interrupt_after_ms =
      -1;  ///< sends `signal` once `interrupt_when` exists and this time has passed
  std::filesystem::path interrupt_when;
  int signal = 2;  ///< SIGINT
};

ProgramResult run_program(const Strings& arguments, const ProgramOptions& options = {});
/// Any other program, e.g. python3.
ProgramResult run_command(const Strings& command, const ProgramOptions& options = {});

/// Returns the result of a program that succeeded. Otherwise throws, which fails and ends the test;
/// so it is called on the test's own thread.
ProgramResult must_succeed(ProgramResult result,
                           const std::source_location& place = std::source_location::current());
ProgramResult must_succeed(const Strings& arguments, const ProgramOptions& options = {},
                           const std::source_location& place = std::source_location::current());

/// Fails the test unless the program ended with `code` and one line on standard error that holds
/// `text`.
void expect_one_line_error(const ProgramResult& result, int code, const std::string& text);
/// Runs the program; fails the test unless it ends with code 2 and one line on standard error that
/// holds `text`.
void expect_usage_error(const Strings& arguments, const std::string& text,
                        const ProgramOptions& options = {});

/// Writes bytes over those at a place of a file.
void overwrite(const std::filesystem::path& file, uint64_t place, const std::string& bytes);

/// Returns the path of a recipe below models/.
std::string recipe(const std::string& name);

/// A test with a folder of its own, removed afterwards.
class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest();
  ~ProgramTest() override;

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  std::string text_path(const std::string& name) const { return path(name).string(); }
  void write(const std::string& name, const std::string& text) const;

  /// Runs the program with the test's folder as the current one, and arguments for a shell.
  ProgramResult run_here(const std::string& arguments, const ProgramOptions& options = {}) const;
  /// Reproduces an experiment at quick scale; returns the rows of its results.
  nlohmann::json quick_rows(const std::string& experiment,
                            const ProgramOptions& options = {}) const;

  /// Returns a finished run of the smoke recipe, trained once for all tests of the process. A test
  /// that calls it begins with NEEDS_FASHION_MNIST().
  static const std::filesystem::path& smoke_run();

 private:
  std::filesystem::path folder_;
};

bool have_fashion_mnist();
std::string smoke_recipe();

}  // namespace moesaic::testing
