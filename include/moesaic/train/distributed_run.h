// SPDX-License-Identifier: Apache-2.0
// Processes of a distributed run: shards of experts, comparison of settings, networks and data,
// exchange of damaged images.
#pragma once

#include <memory>

#include "moesaic/base/pattern.h"
#include "moesaic/checkpoint/save.h"
#include "moesaic/data/loader.h"
#include "moesaic/train/run_folder.h"

namespace moesaic {

class ProcessMesh;  // parallel/process_mesh.h

/// Returns whether `trainable` picks the same parameters of all experts of each layer that have
/// names of their own: otherwise some processes that share them would wait for gradients of others.
bool trains_experts_uniformly(const Model& model, const Patterns& trains);

/// Leaves each process its shard of the experts of every MoE layer, see nn::Experts::shard().
void shard_experts(Model& model, const std::shared_ptr<const ProcessMesh>& processes);

/// Gives every process all experts again.
void unshard_experts(Model& model);

/// The tensors, or rows of them, of this process' experts in a network and an optimizer of its
/// parameters.
class ExpertShards {
 public:
  /// Takes the names from the network's MoE layers.
  explicit ExpertShards(const Model& model);

  /// Returns whether this process has a share of the tensor: of a parameter, a buffer or, with
  /// their names at the front, a slot of the optimizer.
  bool has(const std::string& name) const;
  /// Returns the tensors of the model and of a phase that this process stores: its slices of shared
  /// experts, once among the replicas; its own optimizer state; in process 0 everything else.
  CheckpointShard local_shard(const CheckpointShard& all, const ProcessMesh& processes,
                              bool is_optimizer_sharded) const;
  /// Returns the tensors that this process has of all, with its rows of stacked ones.
  TensorMap local_tensors(TensorMap tensors) const;

 private:
  std::shared_ptr<const ProcessMesh> processes_;  ///< Null where nothing is shared.
  // Beginnings of names:
  std::vector<std::string> stacked_;  ///< Of layers whose experts are rows of their tensors.
  std::vector<std::string> named_;    ///< Of layers whose experts have names of their own.
  std::vector<std::string> own_;      ///< Of such experts that this process has.
};

// What processes compare before they work together. All of it throws Error (usage) that names the
// first process which differs from process 0; all processes call it.

/// Waits without a timeout for all processes, then compares the library that they run.
void check_same_build(const ProcessMesh& processes);

/// Compares settings; `what` they are of, such as "recipe", is in the message beside those that
/// differ.
void check_same_settings(const ProcessMesh& processes, const std::string& what,
                         const Json& settings);

/// Gives all processes the network of process 0, once all have made theirs, which may differ by
/// rounding. Throws Error (usage) where they are of another configuration.
void broadcast_network(const ProcessMesh& processes, const Model& model);

/// Waits for all processes, and compares their checkpoints by name and all bytes of weights and
/// buffers. Where there is no checkpoint, all take the network of process 0.
void sync_network(const ProcessMesh& processes, const fs::path& checkpoint, const Model& model);

/// Returns a text that differs where splits differ in what data_record() knows without reading
/// shards, or in the pixels of a few images that are not files. A record that is `known` is not
/// made again.
std::string data_fingerprint(const Dataset& data, const DataRecord* known = nullptr);

/// Adds the damaged images that a batch replaced (Batch::replaced) to `known`, which is sorted.
/// Several processes add those of all their shards, count them together by their loaders (which
/// have the option `is_shared`), and the first one that met an image warns of it. Throws Error
/// (failure) where they are too many. Returns the largest `signal` of all processes, by the same
/// exchange.
int sync_replaced_images(const std::map<int64_t, std::string>& replaced, Loader& loader,
                         const ProcessMesh* processes, std::vector<int64_t>& known, int signal = 0);

}  // namespace moesaic
