// SPDX-License-Identifier: Apache-2.0
#include "state.h"

#include <cstdio>
#include <cstdlib>

namespace fake_gpu {
namespace {

FakeGpuCounts counts{};

/// Whether the device got work since the host waited last.
bool busy = false;

// Lives as long as the process: libraries release their GPU memory from their own destructors.
std::string& errors() {
  static auto* const text = new std::string;
  return *text;
}

bool traced() {
  static const bool set = std::getenv("FAKE_GPU_TRACE") != nullptr;
  return set;
}

/// LibTorch keeps what NVRTC compiled in a folder of the user's, where a real GPU would find the
/// empty programs of this one.
__attribute__((constructor)) void keep_nothing_compiled() {
  setenv("USE_PYTORCH_KERNEL_CACHE", "0", 1);
}

}  // namespace

std::recursive_mutex& lock() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

void count(uint64_t FakeGpuCounts::*which, const char* call) {
  const std::lock_guard guard(lock());
  ++(counts.*which);
  if (traced()) std::fprintf(stderr, "fake GPU: %s\n", call);
}

cudaError_t refuse(cudaError_t error, const std::string& why) {
  const std::lock_guard guard(lock());
  count(&FakeGpuCounts::errors, ("refused: " + why).c_str());
  errors() += why + "\n";
  return last_error() = error;
}

cudaError_t& last_error() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

Capture& capture() {
  static auto* const one = new Capture;
  return *one;
}

bool is_captured(cudaStream_t stream) {
  const std::lock_guard guard(lock());
  return capture().active && capture().streams.count(stream) > 0;
}

cudaStreamCaptureMode& capture_mode() {
  thread_local auto mode = cudaStreamCaptureModeGlobal;
  return mode;
}

cudaError_t enqueue(cudaStream_t stream, const char* call) {
  const std::lock_guard guard(lock());
  busy = true;
  if (is_captured(stream)) ++capture().nodes;
  const bool by_default = stream == nullptr || stream == cudaStreamLegacy;
  if (!capture().active || !by_default) return cudaSuccess;
  return refuse(cudaErrorStreamCaptureImplicit,
                std::string(call) + " on the default stream in a capture");
}

cudaError_t wait(const char* call) {
  const std::lock_guard guard(lock());
  if (busy) count(&FakeGpuCounts::waits, call);
  busy = false;
  if (!capture().active) return cudaSuccess;
  return refuse(cudaErrorStreamCaptureUnsupported, std::string(call) + " in a capture");
}

cudaError_t check_unsafe(const char* call) {
  const std::lock_guard guard(lock());
  if (!capture().active || capture_mode() == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  return refuse(cudaErrorStreamCaptureUnsupported, std::string(call) + " in a capture");
}

}  // namespace fake_gpu

extern "C" {

void fake_gpu_counts(FakeGpuCounts* counts) {
  const std::lock_guard guard(fake_gpu::lock());
  *counts = fake_gpu::counts;
}

void fake_gpu_reset() {
  const std::lock_guard guard(fake_gpu::lock());
  fake_gpu::counts = {};
  fake_gpu::errors().clear();
  fake_gpu::last_error() = cudaSuccess;
}

const char* fake_gpu_errors() {
  const std::lock_guard guard(fake_gpu::lock());
  return fake_gpu::errors().c_str();
}

}  // extern "C"
