// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

namespace moesaic {
class Group;      // parallel/group.h
class Processes;  // parallel/processes.h
}  // namespace moesaic

namespace moesaic::nn {

/// How a network's batches lie in processes.
struct BatchShare {
  std::shared_ptr<const Processes> processes;  ///< Null: there is one process.
  /// Whether a forward pass has this process' equal part of a batch, by rank, or the whole batch,
  /// the same in every process.
  bool parted = true;
  /// Whether this is a module of shared experts, which gets what the processes of a replica have.
  bool of_shared_experts = false;

  /// Returns the processes that have the other parts of a batch, null where this one has all of it.
  std::shared_ptr<const Group> parts() const;
};

/// A module whose outputs for an image depend on the other images of a batch, and which computes
/// what it would for the whole batch where the network has a part of it.
class SharesBatch {
 public:
  virtual ~SharesBatch() = default;
  void share(BatchShare share) { share_ = std::move(share); }
  const BatchShare& share() const { return share_; }

 private:
  BatchShare share_;
};

/// Tells a network and all of its modules how its batches lie in processes.
void share_batches(torch::nn::Module& network, const BatchShare& share);

/// Sets each value to 0 with probability `rate`, 0 <= rate < 1, and divides it by 1 - rate
/// otherwise. Draws from `random`; returns x where `random` is undefined or the rate is 0. Where
/// processes share a batch, x [B, ...] is that of this one, and on the CPU what falls is what would
/// of the whole batch. On a GPU each process draws other masks than one alone would.
at::Tensor dropout(const at::Tensor& x, double rate, const at::Generator& random,
                   const BatchShare& share = {});

}  // namespace moesaic::nn
