// SPDX-License-Identifier: Apache-2.0
// Runs the program as a user would, and looks at what it prints and leaves.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#define NEEDS_FASHION_MNIST()                                                \
  if (!::moesaic::testing::have_fashion_mnist()) {                           \
    GTEST_SKIP() << "needs Fashion-MNIST: moesaic data fetch fashion-mnist"; \
  }

namespace moesaic::testing {

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
  std::vector<std::string> environment;  ///< NAME=value
  int interrupt_after_ms =
      -1;  ///< sends `signal` once `interrupt_when` exists and this time has passed
  std::filesystem::path interrupt_when;
  int signal = 2;  ///< SIGINT
};

ProgramResult run_program(const std::vector<std::string>& arguments,
                          const ProgramOptions& options = {});
/// Any other program, e.g. python3.
ProgramResult run_command(const std::vector<std::string>& command,
                          const ProgramOptions& options = {});

/// Fails the test unless the program ended with `code` and one line on standard error that holds
/// `text`.
void expect_one_line_error(const ProgramResult& result, int code, const std::string& text);

/// A test with a folder of its own, removed afterwards.
class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest();
  ~ProgramTest() override;

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  std::string text_path(const std::string& name) const { return path(name).string(); }
  void write(const std::string& name, const std::string& text) const;

  /// A finished run of the smoke recipe, trained once for all tests; skips the test without
  /// Fashion-MNIST.
  static const std::filesystem::path& smoke_run();

 private:
  std::filesystem::path folder_;
};

bool have_fashion_mnist();
std::string smoke_recipe();

}  // namespace moesaic::testing
