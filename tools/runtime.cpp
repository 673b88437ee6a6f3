// SPDX-License-Identifier: Apache-2.0
#include "runtime.h"

#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace moesaic::tools {
namespace {

/// Tensors of a few MiB come and go all the time. By default glibc gives such buffers back to the
/// kernel at once and pays for fresh zeroed pages at the next one, which costs a training step
/// about a tenth.
void keep_freed_memory() {
  constexpr int kLargest = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLargest);
  mallopt(M_TRIM_THRESHOLD, kLargest);
}

/// GNU OpenMP's threads spin for milliseconds at every barrier. On a machine that does anything
/// else at the same time they then wait for each other's time slices, and a run becomes ten times
/// slower; 20 000 turns are some 50 us.
void spin_briefly(char** argv) {
  const bool chosen =
      std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr;
  if (chosen || setenv("GOMP_SPINCOUNT", "20000", 1) != 0) return;
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  execv(self.c_str(), argv);  // where this fails, the run goes on without
}

}  // namespace

void tune_runtime(char** argv) {
  spin_briefly(argv);
  // A benchmark's other side gets the C library's defaults, which its users have; so does ours.
  const bool benchmark = argv[1] != nullptr && std::string_view(argv[1]) == "bench";
  if (!benchmark) keep_freed_memory();
}

}  // namespace moesaic::tools
