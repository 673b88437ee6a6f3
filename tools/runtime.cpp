// SPDX-License-Identifier: Apache-2.0
#include "runtime.h"

#include <c10/util/Logging.h>
#include <malloc.h>
#include <unistd.h>

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <thread>

#include "moesaic/base/error.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/base/log.h"
#include "moesaic/parallel/launch.h"

namespace moesaic::tools {
namespace {

/// Returns whether others keep all processors busy, by the load of the last minute.
bool is_busy() {
  double load = 0.0;
  return getloadavg(&load, 1) == 1 &&
         load > static_cast<double>(std::thread::hardware_concurrency());
}

/// Limits the spinning of GNU OpenMP's threads, which by default lasts milliseconds at every
/// barrier. On a busy machine threads then wait for each other's time slices, and a run becomes ten
/// times slower; 20 000 iterations take some 50 us, and where others wait for the processors too,
/// threads sleep at once. Results do not depend on it.
void spin_briefly(char** argv) {
  const bool chosen =
      std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr;
  if (chosen || setenv("GOMP_SPINCOUNT", is_busy() ? "0" : "20000", 1) != 0) return;
  std::error_code error;
  const std::string self = fs::read_symlink("/proc/self/exe", error).string();
  execv(self.c_str(), argv);  // If execv fails, the run continues without the setting.
}

bool streams_tensors(std::string_view command) {
  return command == "import" || command == "export" || command == "inspect";
}

/// Makes glibc return every buffer from 1 MiB when it is freed. Kept ones of tensors that are read
/// and written one after the other leave holes that the next does not fit.
void return_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

}  // namespace

void keep_freed_memory() {
  constexpr int kLargest = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, kLargest);
}

bool follows_a_leader() {
  try {
    return rank_of(process_environment()) > 0;
  } catch (const Error&) {
    return false;  // Nobody knows which process this is.
  }
}

void log_usage_error(const std::string& what) {
  record_error(what);
  if (!follows_a_leader()) return log_error("{}", what);
  try {
    const Launch launch = read_launch(process_environment());
    if (is_rank_zero_reachable(launch))
      log_error("process {} of {}: {}", launch.rank, launch.size, what);
  } catch (const Error&) {
    // On the leader's machine it says the same.
    if (is_local_rank_zero(process_environment())) log_error("{}", what);
  }
}

void let_the_leader_speak() {
  if (!follows_a_leader()) {
    log_threshold();  // A wrong MOESAIC_LOG is named even where the verb has nothing to say.
    return;
  }
  set_log_prefix(fmt::format("process {}: ", rank_of(process_environment())));
  const char* const asked = std::getenv("MOESAIC_LOG");
  if (asked != nullptr && *asked != '\0') return;
  setenv("MOESAIC_LOG", "warning", /*overwrite=*/1);
  take_warnings([](std::string_view) {});  // Process 0 says it of all until they have met.
}

void record_error(const std::string& what) {
  const char* const file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (file == nullptr || *file == '\0') return;
  const nlohmann::json error = {
      {"message",
       {{"message", what}, {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}}}};
  std::ofstream(file) << error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void tune_runtime(char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // A file that may not grow is an error of its write.
  // What c10d has to say of a lost connection, this program says in one line.
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
  spin_briefly(argv);
  const std::string_view command = argv[1] == nullptr ? "" : argv[1];
  if (streams_tensors(command)) {
    return_freed_memory();
  } else if (command != "bench") {  // It has the C library's defaults, like other libraries.
    keep_freed_memory();
  }
}

void end_process(int exit_code) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(exit_code);  // Sanitizers report at the exit.
#else
  std::fflush(nullptr);
  _exit(exit_code);
#endif
}

}  // namespace moesaic::tools
