// SPDX-License-Identifier: Apache-2.0
// What the parts of the fake GPU share: counts, errors, and the rules of a stream capture.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>
#include <set>
#include <string>

#include "fake_gpu.h"

namespace fake_gpu {

/// Limits of an H100.
constexpr int kThreads = 1024, kMultiprocessors = 132;
constexpr int kSharedBytes = 48 * 1024, kSharedBytesOnRequest = 227 * 1024;

/// One lock for everything: a call may enter others.
std::recursive_mutex& lock();

void count(uint64_t FakeGpuCounts::*which, const char* call);
/// Records an error, which the calling thread's cudaGetLastError() returns too.
cudaError_t refuse(cudaError_t error, const std::string& why);
/// Returns the calling thread's last error.
cudaError_t& last_error();

/// Returns a new handle of a stream, event or graph.
template <class Handle>
Handle new_handle() {
  static uintptr_t next = 0x1000;
  const std::lock_guard guard(lock());
  return reinterpret_cast<Handle>(next += 16);
}

/// The one capture that there can be, with the streams that joined it and the events on them.
struct Capture {
  bool active = false;
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  size_t nodes = 0;
};
Capture& capture();
bool is_captured(cudaStream_t stream);
/// Returns the calling thread's mode: calls that are not safe in a capture need the relaxed one.
cudaStreamCaptureMode& capture_mode();

/// Called by work for a stream; refuses that for the default stream during a capture.
cudaError_t enqueue(cudaStream_t stream, const char* call);
/// Called where the host synchronises, which counts unless the device is idle; refused during a
/// capture.
cudaError_t wait(const char* call);
/// Refuses a call during a capture, except by threads in the relaxed mode.
cudaError_t check_unsafe(const char* call);

}  // namespace fake_gpu
