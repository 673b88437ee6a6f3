// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double of_machine() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<double>(pages) * static_cast<double>(size) : kNoLimit;
}

/// Returns the container's memory limit in bytes. "max", which is not a number, means no limit.
double of_container() {
  double min = kNoLimit;
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(file);
    if (double bytes = 0.0; in >> bytes && bytes > 0.0) min = std::min(min, bytes);
  }
  return min;
}

double of_shell() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  return static_cast<double>(limit.rlim_cur);
}

}  // namespace

double memory_limit() {
  return std::min({of_machine(), of_container(), of_shell()});
}

double resident_memory() {
  std::ifstream in("/proc/self/statm");
  double size = 0.0, resident = 0.0;
  in >> size >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

void release_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

void check_memory(double bytes, const std::string& what, const std::string& where) {
  const double limit = memory_limit();
  if (bytes <= limit) return;
  fail_usage("{}: {} needs {} of memory, this machine has {}", where, what, bytes_text(bytes),
             bytes_text(limit));
}

}  // namespace moesaic
