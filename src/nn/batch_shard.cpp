// SPDX-License-Identifier: Apache-2.0
#include "moesaic/nn/batch_shard.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>

#include "moesaic/base/random.h"
#include "moesaic/nn/init.h"
#include "moesaic/parallel/process_mesh.h"

namespace moesaic::nn {

std::shared_ptr<const ProcessGroup> BatchShard::process_group() const {
  if (!processes || !is_sharded) return nullptr;
  const ProcessGroup& group = is_expert_parallel ? processes->replica_group() : processes->world();
  return group.size() == 1 ? nullptr : std::shared_ptr<const ProcessGroup>(processes, &group);
}

void set_batch_shard(torch::nn::Module& network, const BatchShard& shard) {
  network.apply([&](torch::nn::Module& module) {
    if (auto* const shares = dynamic_cast<DataParallelModule*>(&module))
      shares->set_batch_shard(shard);
  });
}

BatchShard batch_shard_of(const torch::nn::Module& network) {
  if (const auto* const shares = dynamic_cast<const DataParallelModule*>(&network))
    return shares->batch_shard();
  for (const auto& module : network.modules(/*include_self=*/false)) {
    if (const auto* const shares = dynamic_cast<const DataParallelModule*>(module.get()))
      return shares->batch_shard();
  }
  return {};
}

namespace {

constexpr int64_t kGrain = 1 << 14;  // Numbers that a thread draws at least.

/// Returns 1 / keep with probability `keep` and else 0 for each number of x [B, ...], whose rows
/// are those from `first` on of a whole batch. A row's are a function of the seed and its place.
at::Tensor factors_of_rows(const at::Tensor& x, double keep, uint64_t seed, int64_t first) {
  at::Tensor factors = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  if (x.numel() == 0) return factors.to(x.scalar_type());
  const int64_t rows = x.size(0), width = x.numel() / rows;
  const auto limit = static_cast<uint64_t>(keep * 0x1p32);  // Of 32 random bits.
  const auto kept = static_cast<float>(1.0 / keep);
  auto* const numbers = factors.mutable_data_ptr<float>();
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      CounterRng random(seed, stream_id("dropout"), static_cast<uint64_t>(first + row));
      uint64_t bits = 0;
      for (int64_t i = 0; i < width; ++i) {
        bits = i % 2 == 0 ? random.next() : bits >> 32;
        numbers[row * width + i] = (bits & 0xffffffff) < limit ? kept : 0.0f;
      }
    }
  });
  return factors.to(x.scalar_type());
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random,
                   const BatchShard& shard) {
  if (rate <= 0.0 || !random.defined()) return x;
  const double keep = 1.0 - rate;
  const auto process_group = shard.process_group();
  const int64_t rank = process_group ? process_group->rank() : 0;
  if (x.is_cpu()) return x * factors_of_rows(x, keep, next_seed(random), rank * x.size(0));
  const at::Generator own =
      process_group && !x.is_meta()
          ? make_generator(next_seed(random) + static_cast<uint64_t>(rank), random.device())
          : random;
  return x * at::empty_like(x).bernoulli_(keep, own).div_(keep);
}

}  // namespace moesaic::nn
