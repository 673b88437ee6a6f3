// SPDX-License-Identifier: Apache-2.0
// Several processes of the program that belong together.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "integration/program.h"

namespace moesaic::testing {

/// A socket on a port that nobody else has as long as it lives.
class HeldPort {
 public:
  HeldPort() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    number_ = ntohs(address.sin_port);
  }
  ~HeldPort() { close(socket_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;
  int number() const { return number_; }

 private:
  int socket_, number_ = 0;
};

inline int free_port() {
  return HeldPort().number();
}

/// What is particular to one process of several.
struct Fate {
  int rank = -1, signal = 9;
  std::filesystem::path once_this_exists;
  Strings arguments = {};    ///< Of its own, if it is not sent a signal.
  Strings environment = {};  ///< Of its own, if it is not sent a signal.
  std::string shell = {};    ///< A script that starts it as "$@", if it is not sent a signal.
};

/// Starts processes that belong together and waits for all of them.
inline std::vector<ProgramResult> run_in_processes(const Strings& arguments, int count,
                                                   const Fate& fate = {},
                                                   const Strings& environment = {}) {
  const std::string port = std::to_string(free_port());
  std::vector<ProgramResult> results(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    ProgramOptions options;
    options.environment = {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(count),
                           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, "OMP_NUM_THREADS=1"};
    options.environment.insert(options.environment.end(), environment.begin(), environment.end());
    const bool differs = rank == fate.rank && !fate.arguments.empty();
    const bool scripted = rank == fate.rank && !fate.shell.empty();
    if (rank == fate.rank && !fate.environment.empty()) {
      options.environment.insert(options.environment.end(), fate.environment.begin(),
                                 fate.environment.end());
    } else if (rank == fate.rank && !differs && !scripted) {
      options.interrupt_after_ms = 100;
      options.interrupt_when = fate.once_this_exists;
      options.signal = fate.signal;
    }
    threads.emplace_back([&, rank, options, differs, scripted] {
      if (scripted) {
        results[static_cast<size_t>(rank)] = run_command(
            joined({"/bin/sh", "-c", fate.shell, "sh", MOESAIC_PROGRAM}, arguments), options);
        return;
      }
      // The others are at their meeting by then, or nearly.
      if (differs) std::this_thread::sleep_for(std::chrono::seconds(2));
      results[static_cast<size_t>(rank)] =
          run_program(differs ? fate.arguments : arguments, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

/// Returns the results of processes that all succeeded. Otherwise throws, which fails and ends the
/// test.
std::vector<ProgramResult> all_must_succeed(
    std::vector<ProgramResult> results,
    const std::source_location& place = std::source_location::current());
std::string bytes_in(const std::filesystem::path& file);
/// Returns the lines on steps of training of a run's metrics.
std::vector<nlohmann::json> train_lines(const std::filesystem::path& run);
void expect_same_losses(const std::filesystem::path& one, const std::filesystem::path& other);

/// Returns the arguments that train the smoke recipe of clusters.
Strings clusters(const Strings& more);
/// Returns those of a training that goes on until it is ended.
Strings endless(const std::string& out, int timeout = 10);
/// Runs a script that starts two processes by "$@" with RANK in the environment.
ProgramResult run_script_of_two(const Strings& arguments, const std::string& script);
/// Expects the processes to end with one line of error in all, but for process `without`.
void expect_one_line_of_all(const std::vector<ProgramResult>& results, const std::string& text,
                            int without = -1);

}  // namespace moesaic::testing
