// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

namespace moesaic {
class ProcessGroup;  // parallel/process_group.h
class ProcessMesh;   // parallel/process_mesh.h
}  // namespace moesaic

namespace moesaic::nn {

/// How a network's batches are sharded among processes.
struct BatchShard {
  std::shared_ptr<const ProcessMesh> processes;  ///< Null: there is one process.
  /// Whether a forward pass has this process' equal shard of a batch, by rank, or the whole batch,
  /// the same in every process.
  bool is_sharded = true;
  /// Whether this is a module of shared experts, which gets what the processes of a replica have.
  bool is_expert_parallel = false;

  /// Returns the processes that have the other shards of a batch, null where this one has all of
  /// it.
  std::shared_ptr<const ProcessGroup> process_group() const;
};

/// A module whose outputs for an image depend on the other images of a batch, and which computes
/// what it would for the whole batch where the network has a shard of it.
class DataParallelModule {
 public:
  virtual ~DataParallelModule() = default;
  /// Sets how processes share a batch.
  void set_batch_shard(BatchShard shard) { batch_shard_ = std::move(shard); }
  /// Returns how processes share a batch.
  const BatchShard& batch_shard() const { return batch_shard_; }

 private:
  BatchShard batch_shard_;
};

/// Sets the batch shard of a network and of all its modules.
void set_batch_shard(torch::nn::Module& network, const BatchShard& shard);

/// Returns the batch shard of the first module of a network that has one.
BatchShard batch_shard_of(const torch::nn::Module& network);

/// Sets each value to 0 with probability `rate`, 0 <= rate < 1, and divides it by 1 - rate
/// otherwise. Draws from `random`; returns x where `random` is undefined or the rate is 0. Where
/// processes share a batch, x [B, ...] is that of this one, and on the CPU the dropped values are
/// those of the whole batch. On a GPU each process draws other masks than one alone would.
at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random,
                   const BatchShard& shard = {});

}  // namespace moesaic::nn
