// SPDX-License-Identifier: Apache-2.0
#include "large_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <list>
#include <memory>
#include <mutex>

#include "moesaic/base/memory.h"
#include "moesaic/ops/memory.h"

namespace moesaic::ops {
namespace {

constexpr size_t kLarge = 2 << 20;   // bytes; smaller ones the C library keeps by itself
constexpr int64_t kPatience = 1000;  // a block that so many others passed by is freed

struct FreeBlock {
  c10::DataPtr memory;
  size_t bytes = 0;
  int64_t freed = 0;  // when, counted in takes
};

class BlockPool {
 public:
  /// A block of exactly so many bytes, if one is there.
  c10::DataPtr take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    ++takes_;
    c10::DataPtr found;
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const bool fits = !found && block->bytes == bytes;
      if (!fits && takes_ - block->freed <= kPatience) {
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

  void clear() {
    const std::lock_guard lock(mutex_);
    blocks_.clear();
    kept_ = 0;
  }

 private:
  std::mutex mutex_;
  std::list<FreeBlock> blocks_;  // the last freed first: it may still be in a cache
  size_t kept_ = 0;
  int64_t takes_ = 0;
  double limit_ = memory_limit() / 4;
};

/// One for the process, as allocators are. Tensors may outlive it.
const std::shared_ptr<BlockPool>& block_pool() {
  static const auto pool = std::make_shared<BlockPool>();
  return pool;
}

/// A block while a tensor has it.
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
  // With an allocator of its own, a storage can be resized as any other.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, pooled_memory(bytes),
                             c10::GetCPUAllocator(), /*resizable=*/true);
  at::Tensor tensor = at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace moesaic::ops

namespace moesaic {

size_t cached_memory() {
  return ops::block_pool()->kept();
}

void free_cached_memory() {
  ops::block_pool()->clear();
}

}  // namespace moesaic
