// SPDX-License-Identifier: Apache-2.0
#include <sanitizer/allocator_interface.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>

#include "fuzz.h"
#include "moesaic/base/error.h"

namespace moesaic::fuzz {
namespace {

constexpr double kMaxSeconds = 1.0;
constexpr int64_t kFreeBytes = int64_t{64} << 20;

int64_t held = 0, peak = 0;

void count_taken(const volatile void*, size_t bytes) {
  held += static_cast<int64_t>(bytes);
  peak = std::max(peak, held);
}

void count_given(const volatile void* place) {
  held -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(place)));
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

void check_costs(size_t bytes, double seconds) {
  if (seconds > kMaxSeconds) give_up("it took " + std::to_string(seconds) + " seconds");
  const int64_t allowed = 4 * static_cast<int64_t>(bytes) + kFreeBytes;
  if (peak > allowed) {
    give_up(std::to_string(peak) + " bytes were held for an input of " + std::to_string(bytes));
  }
}

}  // namespace

MemoryFile::MemoryFile(Bytes content) : fd_(::memfd_create("input", 0)) {
  const auto size = static_cast<ssize_t>(content.size());
  if (fd_ < 0 || ::write(fd_, content.data(), content.size()) != size) give_up("no memory file");
}

MemoryFile::~MemoryFile() {
  ::close(fd_);
}

std::filesystem::path put_file(const std::string& name, Bytes content) {
  static const std::filesystem::path folder = [] {
    const auto place = std::filesystem::temp_directory_path();
    const auto own = place / ("moesaic-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(own);
    return own;
  }();
  std::ofstream file(folder / name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(content.data()),
             static_cast<std::streamsize>(content.size()));
  if (!file.flush()) give_up("no place for " + name);
  return folder / name;
}

std::pair<std::string, std::string> halves(Bytes input) {
  const std::string text = text_of(input);
  const size_t blank = std::min(text.find("\n\n"), text.size());
  return {text.substr(0, blank), text.substr(std::min(text.size(), blank + 2))};
}

}  // namespace moesaic::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using namespace moesaic::fuzz;
  ::setenv("MOESAIC_LOG", "error", 1);
  return __sanitizer_install_malloc_and_free_hooks(count_taken, count_given) == 0 ? 1 : 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic::fuzz;
  held = peak = 0;
  const double begin = processor_seconds();
  try {
    read_input({data, size});
  } catch (const moesaic::Error& error) {
    // The program escapes all other control characters where it prints.
    if (std::string_view(error.what()).empty()) give_up("an error without a word");
  }
  check_costs(size, processor_seconds() - begin);
  return 0;
}
