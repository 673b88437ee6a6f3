// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

#include "state.h"

namespace fake_gpu {
namespace {

struct Range {
  size_t bytes;
  Place place;
  bool mapped;
};

std::map<uintptr_t, Range>& ranges() {
  static auto* const all = new std::map<uintptr_t, Range>;
  return *all;
}

uintptr_t address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

cudaError_t copy(void* to, const void* from, size_t bytes, const char* call, cudaStream_t stream,
                 bool waits) {
  const std::lock_guard guard(lock());
  const Place target = place_of(to, bytes), source = place_of(from, bytes);
  if (target == Place::device) {
    if (source != Place::device) count(&FakeGpuCounts::copies_to_device, call);
  } else if (source == Place::device) {
    count(&FakeGpuCounts::copies_to_host, call);
    std::memset(to, 0, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
  const bool pageable = target == Place::pageable || source == Place::pageable;
  if (pageable && is_captured(stream)) {
    return refuse(cudaErrorStreamCaptureUnsupported,
                  std::string(call) + " of pageable memory in a capture");
  }
  const cudaError_t error = enqueue(stream, call);
  const bool into_pageable = target == Place::pageable && source == Place::device;
  return error == cudaSuccess && (waits || into_pageable) ? wait(call) : error;
}

}  // namespace

void* allocate(size_t bytes, Place place) {
  constexpr size_t kPage = 4096;
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  const int access = place == Place::device ? PROT_NONE : PROT_READ | PROT_WRITE;
  void* const pointer =
      mmap(nullptr, whole, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pointer == MAP_FAILED) return nullptr;
  const std::lock_guard guard(lock());
  ranges()[address(pointer)] = {whole, place, true};
  return pointer;
}

cudaError_t release(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const std::lock_guard guard(lock());
  const auto found = ranges().find(address(pointer));
  if (found == ranges().end() || !found->second.mapped) {
    return refuse(cudaErrorInvalidValue, "release of memory that was not allocated");
  }
  munmap(pointer, found->second.bytes);
  ranges().erase(found);
  return cudaSuccess;
}

Place place_of(const void* pointer, size_t bytes) {
  const std::lock_guard guard(lock());
  auto after = ranges().upper_bound(address(pointer));
  if (after == ranges().begin()) return Place::pageable;
  const auto& [begin, range] = *--after;
  const size_t offset = address(pointer) - begin;
  if (offset >= range.bytes) return Place::pageable;
  if (bytes > range.bytes - offset) {
    refuse(cudaErrorInvalidValue, "copy past the end of an allocation");
  }
  return range.place;
}

void pin(void* pointer, size_t bytes) {
  const std::lock_guard guard(lock());
  ranges()[address(pointer)] = {bytes, Place::pinned, false};
}

void unpin(void* pointer) {
  const std::lock_guard guard(lock());
  ranges().erase(address(pointer));
}

}  // namespace fake_gpu

using fake_gpu::Place;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (const cudaError_t error = fake_gpu::check_unsafe("cudaMalloc")) return error;
  fake_gpu::count(&FakeGpuCounts::allocations, "cudaMalloc");
  *pointer = bytes > 0 ? fake_gpu::allocate(bytes, Place::device) : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  fake_gpu::count(&FakeGpuCounts::allocations, "cudaMallocAsync");
  *pointer = fake_gpu::allocate(bytes, Place::device);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t error = fake_gpu::check_unsafe("cudaFree")) return error;
  return fake_gpu::release(pointer);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  return fake_gpu::release(pointer);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (const cudaError_t error = fake_gpu::check_unsafe("cudaHostAlloc")) return error;
  *pointer = fake_gpu::allocate(bytes, Place::pinned);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  return fake_gpu::release(pointer);
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  fake_gpu::pin(pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  fake_gpu::unpin(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = size_t{78} << 30;
  *total = size_t{80} << 30;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  const Place place = fake_gpu::place_of(pointer);
  auto* const same = const_cast<void*>(pointer);
  attributes->type = cudaMemoryTypeUnregistered;
  if (place == Place::pageable) return cudaSuccess;
  attributes->type = place == Place::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->devicePointer = same;
  if (place == Place::pinned) attributes->hostPointer = same;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return fake_gpu::copy(to, from, bytes, "cudaMemcpy", nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return fake_gpu::copy(to, from, bytes, "cudaMemcpyAsync", stream, false);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (height == 0) return cudaSuccess;
  const size_t to_bytes = to_pitch * (height - 1) + width;
  const size_t bytes = from_pitch == to_pitch ? to_bytes : width;
  return fake_gpu::copy(to, from, bytes, "cudaMemcpy2DAsync", stream, false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return fake_gpu::copy(to, from, bytes, "cudaMemcpyPeerAsync", stream, false);
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return fake_gpu::wait("cudaMemcpyToSymbol");
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
  *pointer = fake_gpu::allocate(1, Place::device);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int, size_t bytes) {
  fake_gpu::place_of(to, bytes);
  return fake_gpu::enqueue(nullptr, "cudaMemset");
}
cudaError_t cudaMemsetAsync(void* to, int, size_t bytes, cudaStream_t stream) {
  fake_gpu::place_of(to, bytes);
  return fake_gpu::enqueue(stream, "cudaMemsetAsync");
}

}  // extern "C"
