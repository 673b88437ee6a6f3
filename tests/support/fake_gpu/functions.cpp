// SPDX-License-Identifier: Apache-2.0
#include "functions.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace fake_gpu {
namespace {

std::unordered_map<const void*, Function>& functions() {
  static auto* const all = new std::unordered_map<const void*, Function>;
  return *all;
}

std::string readable(const std::string& mangled) {
  int status = 0;
  char* const name = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  const std::string text = status == 0 ? name : mangled;
  std::free(name);
  return text;
}

/// Returns the threads that the __launch_bounds__ of a kernel allow: ours are instantiations
/// run<threads, ...> of ops/cuda/start.cuh; of others only the chip's limit is known.
int thread_bound(const char* mangled_name) {
  int threads = kThreads;
  const char* const at = std::strstr(mangled_name, "3runILi");
  if (std::strstr(mangled_name, "7moesaic") != nullptr && at != nullptr) {
    std::sscanf(at, "3runILi%d", &threads);
  }
  return threads;
}

/// Returns why a GPU would refuse the launch, or null.
const char* reason_against(const Function& function, dim3 grid, dim3 block, size_t shared_bytes) {
  constexpr uint64_t kDeepest = 64, kGridX = 2147483647, kGridYZ = 65535;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kThreads || block.z > kDeepest) return "threads of a block";
  if (threads > static_cast<uint64_t>(function.max_threads)) {
    return "more threads than __launch_bounds__";
  }
  const bool empty = grid.x == 0 || grid.y == 0 || grid.z == 0;
  if (empty || grid.x > kGridX || grid.y > kGridYZ || grid.z > kGridYZ) return "blocks of a grid";
  if (shared_bytes > kSharedBytesOnRequest) return "more shared memory than the chip has";
  if (shared_bytes > static_cast<size_t>(function.max_shared_bytes)) {
    return "shared memory without cudaFuncSetAttribute";
  }
  return nullptr;
}

/// Writes all kernels, those launched most often first, to the file that FAKE_GPU_REPORT names.
struct Report {
  ~Report() {
    const char* const path = std::getenv("FAKE_GPU_REPORT");
    std::FILE* const file = path != nullptr ? std::fopen(path, "a") : nullptr;
    if (file == nullptr) return;
    std::vector<const Function*> launched;
    for (const auto& [key, function] : functions()) {
      if (function.launches > 0) launched.push_back(&function);
    }
    std::sort(launched.begin(), launched.end(),
              [](const auto* a, const auto* b) { return a->launches > b->launches; });
    for (const Function* f : launched) {
      std::fprintf(file, "%8llu x  blocks <= %llu  threads <= %llu  shared <= %llu  %s\n",
                   static_cast<unsigned long long>(f->launches),
                   static_cast<unsigned long long>(f->widest_grid),
                   static_cast<unsigned long long>(f->widest_block),
                   static_cast<unsigned long long>(f->widest_shared), readable(f->name).c_str());
    }
    std::fputs(fake_gpu_errors(), file);
    std::fclose(file);
  }
};
const Report report;

}  // namespace

Function& add_function(const void* key, const char* mangled_name) {
  const std::lock_guard guard(lock());
  Function& function = functions()[key];
  function.name = mangled_name;
  function.max_threads = thread_bound(mangled_name);
  return function;
}

cudaError_t allow_shared_bytes(const void* key, int bytes) {
  const std::lock_guard guard(lock());
  const auto found = functions().find(key);
  if (found == functions().end()) {
    return refuse(cudaErrorInvalidDeviceFunction, "attribute of an unregistered function");
  }
  if (bytes > kSharedBytesOnRequest) {
    return refuse(cudaErrorInvalidValue, "attribute: more shared memory than the chip has: " +
                                             readable(found->second.name));
  }
  found->second.max_shared_bytes = std::max(bytes, kSharedBytes);
  return cudaSuccess;
}

cudaError_t launch(const void* key, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream) {
  const std::lock_guard guard(lock());
  const auto found = functions().find(key);
  if (found == functions().end()) {
    return refuse(cudaErrorInvalidDeviceFunction, "launch of an unregistered function");
  }
  Function& function = found->second;
  count(&FakeGpuCounts::launches, function.name.c_str());
  if (const char* const why = reason_against(function, grid, block, shared_bytes)) {
    return refuse(cudaErrorInvalidConfiguration, std::string(why) + ": " + readable(function.name));
  }
  ++function.launches;
  function.widest_grid = std::max<uint64_t>(function.widest_grid, grid.x);
  function.widest_block = std::max(function.widest_block, uint64_t{block.x} * block.y * block.z);
  function.widest_shared = std::max<uint64_t>(function.widest_shared, shared_bytes);
  return enqueue(stream, "launch");
}

}  // namespace fake_gpu
