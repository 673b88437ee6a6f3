// SPDX-License-Identifier: Apache-2.0
#include "integration/program.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "moesaic/base/process.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

fs::path new_folder() {
  std::string pattern = (fs::path(::testing::TempDir()) / "moesaic-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return pattern;
}

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

[[noreturn]] void become(const std::vector<std::string>& command, const ProgramOptions& options,
                         const fs::path& out, const fs::path& err) {
  if (freopen(out.c_str(), "w", stdout) == nullptr ||
      freopen(err.c_str(), "w", stderr) == nullptr) {
    _exit(126);
  }
  for (const auto& item : options.environment) putenv(const_cast<char*>(item.c_str()));
  std::vector<char*> arguments;
  for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

/// Returns what follows a word in a file of /proc on a process, 0 where it is not there.
uint64_t number_in(pid_t process, const char* file, const std::string& word) {
  std::ifstream stream(fmt::format("/proc/{}/{}", process, file));
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(word)) return std::stoull(line.substr(word.size()));
  }
  return 0;
}

/// Returns the most memory that the process has had since its exec(), or 0 where it has none left.
/// ru_maxrss would do, but it also holds the memory of this process, from before the exec().
uint64_t peak_memory(pid_t process) {
  return 1024 * number_in(process, "status", "VmHWM:");
}

/// Waits until the child can be reaped; returns its peak of memory, which the kernel keeps and this
/// reads every two milliseconds, or 0 where it ended before that.
uint64_t wait_for_end(pid_t child) {
  uint64_t peak = 0;
  siginfo_t ended{};
  const auto has_ended = [&] {
    return waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT | WNOHANG) == 0 &&
           ended.si_pid == child;
  };
  const std::string program = fs::read_symlink("/proc/self/exe");
  std::error_code error;
  while (!has_ended()) {
    // Until its exec() the child is a copy of this process.
    const fs::path runs = fs::read_symlink(fmt::format("/proc/{}/exe", child), error);
    if (!error && runs != program) peak = std::max(peak, peak_memory(child));
    std::this_thread::sleep_for(2ms);
  }
  return peak;
}

void interrupt(pid_t child, const ProgramOptions& options) {
  for (int waited = 0; waited < 60'000 && !fs::exists(options.interrupt_when); waited += 10) {
    std::this_thread::sleep_for(10ms);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(options.interrupt_after_ms));
  kill(child, options.signal);
}

}  // namespace

Strings joined(Strings words, const Strings& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

nlohmann::json ProgramResult::json() const {
  auto document = nlohmann::json::parse(out, nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << "no JSON document: " << out << err;
  return document.is_discarded() ? nlohmann::json() : document;
}

ProgramResult run_command(const Strings& command, const ProgramOptions& options) {
  const fs::path folder = new_folder();
  std::fflush(nullptr);  // or the child prints once more what is still in the buffers
  const pid_t child = fork();
  if (child == 0) become(command, options, folder / "out", folder / "err");
  std::thread interrupter;
  if (options.interrupt_after_ms >= 0) {
    interrupter = std::thread([&] { interrupt(child, options); });
  }
  // The number of a process that is waited for belongs to nobody else, so that a late signal meets
  // none.
  ProgramResult result;
  result.peak_bytes = wait_for_end(child);
  result.written_bytes = number_in(child, "io", "wchar:");
  if (interrupter.joinable()) interrupter.join();
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  // A bound that is too high, where the program was too short to be asked.
  if (result.peak_bytes == 0) result.peak_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = slurp(folder / "out");
  result.err = slurp(folder / "err");
  fs::remove_all(folder);
  return result;
}

ProgramResult run_program(const Strings& arguments, const ProgramOptions& options) {
  return run_command(joined({MOESAIC_PROGRAM}, arguments), options);
}

ProgramResult must_succeed(ProgramResult result, const std::source_location& place) {
  if (result.exit_code == 0) return result;
  throw std::runtime_error(fmt::format("{}:{}: exit code {}: {}{}", place.file_name(), place.line(),
                                       result.exit_code, result.out, result.err));
}

ProgramResult must_succeed(const Strings& arguments, const ProgramOptions& options,
                           const std::source_location& place) {
  try {
    return must_succeed(run_program(arguments, options), place);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}: {}", fmt::join(arguments, " "), error.what()));
  }
}

void expect_one_line_error(const ProgramResult& result, int code, const std::string& text) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
}

void expect_usage_error(const Strings& arguments, const std::string& text,
                        const ProgramOptions& options) {
  SCOPED_TRACE(fmt::format("moesaic {}", fmt::join(arguments, " ")));
  expect_one_line_error(run_program(arguments, options), 2, text);
}

ProgramTest::ProgramTest() : folder_(new_folder()) {}
ProgramTest::~ProgramTest() {
  fs::remove_all(folder_);
}

void ProgramTest::write(const std::string& name, const std::string& text) const {
  std::ofstream(path(name), std::ios::binary) << text;
}

ProgramResult ProgramTest::run_here(const std::string& arguments,
                                    const ProgramOptions& options) const {
  return run_command({"sh", "-c",
                      fmt::format("cd {} && exec {} {}", shell_quoted(folder_.string()),
                                  shell_quoted(MOESAIC_PROGRAM), arguments)},
                     options);
}

nlohmann::json ProgramTest::quick_rows(const std::string& experiment,
                                       const ProgramOptions& options) const {
  const fs::path out = folder_ / fs::path(experiment).filename();
  must_succeed({"reproduce", experiment, "--scale", "quick", "--out", out.string()}, options);
  return nlohmann::json::parse(slurp(out / "results.json")).at("rows");
}

bool have_fashion_mnist() {
  static const bool found = run_program({"data", "verify", "fashion-mnist"}).exit_code == 0;
  return found;
}

void overwrite(const fs::path& file, uint64_t place, const std::string& bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(place));
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string recipe(const std::string& name) {
  return (fs::path(MOESAIC_TEST_SOURCE_DIR) / "models" / name).string();
}

std::string smoke_recipe() {
  return recipe("vmoe/recipes/smoke.json");
}

const fs::path& ProgramTest::smoke_run() {
  struct Run {
    fs::path folder = new_folder();
    ~Run() { fs::remove_all(folder); }
  };
  static const Run run;
  static const ProgramResult trained =
      run_program({"train", smoke_recipe(), "--out", (run.folder / "smoke").string()});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  static const fs::path place = run.folder / "smoke";
  return place;
}

}  // namespace moesaic::testing
