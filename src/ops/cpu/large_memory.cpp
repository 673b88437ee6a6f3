// SPDX-License-Identifier: Apache-2.0
#include "moesaic/ops/memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <list>
#include <memory>
#include <mutex>

#include "moesaic/base/process.h"

namespace moesaic::ops {
namespace {

constexpr size_t kLarge = 2 << 20;       // Limit in bytes; the C library caches smaller blocks.
constexpr int64_t kMaxIdleTakes = 1000;  // A block unused for so many calls of take() is freed.

struct FreeBlock {
  c10::DataPtr memory;
  size_t bytes = 0;
  int64_t freed = 0;  // Count of take() calls at the time.
};

class BlockPool {
 public:
  /// Returns a cached block of exactly `bytes` bytes, or null.
  c10::DataPtr take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    ++takes_;
    c10::DataPtr found;
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const bool fits = !found && block->bytes == bytes;
      if (!fits && takes_ - block->freed <= kMaxIdleTakes) {
        ++block;
        continue;
      }
      kept_ -= block->bytes;
      if (fits) found = std::move(block->memory);
      block = blocks_.erase(block);
    }
    return found;
  }

  void give(c10::DataPtr memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (static_cast<double>(kept_ + bytes) > limit_) return;
    kept_ += bytes;
    blocks_.push_front({std::move(memory), bytes, takes_});
  }

  size_t kept() {
    const std::lock_guard lock(mutex_);
    return kept_;
  }

  void share(int64_t processes) {
    const std::lock_guard lock(mutex_);
    limit_ = memory_limit() / 4 / static_cast<double>(processes);
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    blocks_.clear();
    kept_ = 0;
  }

 private:
  std::mutex mutex_;
  std::list<FreeBlock> blocks_;  // The last freed block, likely still in a cache, is first.
  size_t kept_ = 0;
  int64_t takes_ = 0;
  double limit_ = memory_limit() / 4;
};

/// Returns the pool of the process. Tensors may outlive it.
const std::shared_ptr<BlockPool>& block_pool() {
  static const auto pool = std::make_shared<BlockPool>();
  return pool;
}

/// Context of a block that a tensor owns.
struct UsedBlock {
  c10::DataPtr memory;
  size_t bytes;
  std::weak_ptr<BlockPool> pool;
};

void release_block(void* context) {
  const std::unique_ptr<UsedBlock> block(static_cast<UsedBlock*>(context));
  if (const auto pool = block->pool.lock()) pool->give(std::move(block->memory), block->bytes);
}

c10::DataPtr pooled_memory(size_t bytes) {
  c10::DataPtr memory = block_pool()->take(bytes);
  if (!memory) memory = c10::GetCPUAllocator()->allocate(bytes);
  void* const data = memory.get();
  auto block = std::make_unique<UsedBlock>(UsedBlock{std::move(memory), bytes, block_pool()});
  return {data, block.release(), &release_block, at::Device(at::kCPU)};
}

}  // namespace

at::Tensor empty_large(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) *
                       c10::elementSize(at::typeMetaToScalarType(options.dtype()));
  if (bytes < kLarge) return at::empty(sizes, options);
  // A storage with an allocator can be resized.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, pooled_memory(bytes),
                             c10::GetCPUAllocator(), /*resizable=*/true);
  at::Tensor tensor = at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace moesaic::ops

namespace moesaic {

size_t cached_memory_bytes() {
  return ops::block_pool()->kept();
}

void limit_cached_memory(int64_t processes) {
  ops::block_pool()->share(processes);
}

void free_cached_memory() {
  ops::block_pool()->clear();
}

}  // namespace moesaic
