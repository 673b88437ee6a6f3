// SPDX-License-Identifier: Apache-2.0
// Writing checkpoints, during training and by several processes together. Each process writes what
// it holds,
//
//   model-00002-of-00004.safetensors, optimizer-00002-of-00004.safetensors
//
// and one of them publishes the folder, with an index in Hugging Face's form for each of the two:
//
//   model.safetensors.index.json   {"metadata": {"total_size": bytes}, "weight_map": {tensor:
//   file}}
//
// A tensor of which processes hold slices along dimension 0, such as stacked experts, is stored as
// those slices, named NAME[first:end]; readers join them, so that a checkpoint does not depend on
// the number of processes. One process writes model.safetensors and optimizer.safetensors. During
// training a thread copies the tensors, then writes the copy.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/background_task.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/nn/module_state.h"

namespace moesaic {

/// The tensors that one process stores.
struct CheckpointShard {
  TensorMap model;
  TensorMap optimizer;
};

/// Rows first..end-1, along dimension 0, of the tensor `name`.
struct TensorSlice {
  std::string name;
  int64_t first = 0;
  int64_t end = 0;
};

/// Returns the name under which a slice is stored: NAME[first:end].
std::string slice_name(const TensorSlice& slice);
/// Returns the slice that slice_name() names so, nullopt for any other name.
std::optional<TensorSlice> parse_slice(std::string_view name);

/// The files that one process wrote, by name.
struct WrittenShard {
  int64_t index = 0;  ///< From 0.
  int64_t num_shards = 1;
  std::map<std::string, FileContent> files;
};

/// Returns a written shard as a line of JSON, which is sent to the process that publishes.
std::string to_text(const WrittenShard& shard);
/// Returns the shard that to_text() wrote. Throws Error (failure) for another text.
WrittenShard parse_written_shard(const std::string& text);

/// Writes shard `index` (from 0) of `count` to the staging folder of a checkpoint that all
/// processes share: to disk, and hashed, so that hashing is parallel too. A tensor is in one shard
/// only; a process without tensors of a kind writes no file of it. `progress` is called for each
/// piece. Throws Error: failure as write_tensors() does, usage for an index out of range and for
/// slices where there is only one shard.
WrittenShard write_shard(const fs::path& staging, int64_t index, int64_t count,
                         const CheckpointShard& shard, const std::function<void()>& progress = {});

/// Completes a staged checkpoint with indices, state.json, config.json and MANIFEST.json and
/// renames it to its place; an older one of that name is replaced atomically. The shards' files are
/// not hashed again: their sizes and headers are checked. `config` has at least "model". Throws
/// Error, and publishes nothing: usage where a shard is missing or there twice; failure where a
/// file is missing or cut, a tensor is in two files, or slices do not make up a tensor.
void publish(StagedDirectory& staged, const std::vector<WrittenShard>& shards,
             const nlohmann::ordered_json& config, const nlohmann::ordered_json& state,
             const std::function<void()>& progress = {});

class ProcessMesh;  // parallel/process_mesh.h

/// Writes a checkpoint of which each process has a shard, which may be empty: each writes its own,
/// and process 0 publishes the folder, which all of them see. Null: this one is alone and has all
/// of it, as save_checkpoint() writes it. `config` and `state` are those of process 0. Returns in
/// every process once the checkpoint is published. Throws as write_shard() and publish() do, and
/// PeerFailure where another process failed.
void save_distributed(const ProcessMesh* processes, const fs::path& folder,
                      const CheckpointShard& shard, const nlohmann::ordered_json& config,
                      const nlohmann::ordered_json& state);

/// Copies tensors to contiguous ones on the CPU in `copy`, which then has the same names. Memory
/// of a tensor of the same name, shape and dtype that is there already is used again. Nothing may
/// read `copy` meanwhile. With `checks_finite`, returns the name of a tensor that holds NaN or
/// infinity; empty where none does.
std::string snapshot(const TensorMap& tensors, TensorMap& copy, bool checks_finite = false);

/// Thrown where a network to save holds NaN or infinity: no program would load the checkpoint.
class NonFiniteError : public Error {
 public:
  /// `what` names the tensor.
  explicit NonFiniteError(const std::string& what) : Error(ErrorKind::failure, what) {}
};

/// How long a save took, in seconds.
struct SaveTimes {
  double wait = 0.0;   ///< Seconds that training waited for the save before.
  double copy = 0.0;   ///< Seconds that training waited for the snapshot.
  double write = 0.0;  ///< Seconds of writing, during training.

  /// Returns how long training waited, in seconds.
  double pause() const { return wait + copy; }
};

/// Writes checkpoints one after the other on a thread, from a copy whose memory is kept for the
/// next one. An error of a save is thrown once, as it was, by the next call; the destructor waits
/// and logs it. A model that is not finite is not written: the error is NonFiniteError.
class AsyncSave {
 public:
  using Write = std::function<void(const CheckpointShard& copy)>;

  /// Waits for the save before, then copies `shard` and has `write` called with the copy, both on
  /// the thread: no tensor of `shard` may change before wait_for_copy() returns. Returns the times
  /// of the save before, unless poll() or wait() did. `wait_first`, if any, is called before it
  /// waits, and its time counts as that.
  std::optional<SaveTimes> start(CheckpointShard shard, Write write,
                                 const std::function<void()>& wait_first = {});

  /// Waits until the copy is made; throws the save's error where it cannot be.
  void wait_for_copy();

  /// Returns whether a save goes on.
  bool is_running() const { return task_.is_running(); }
  /// Returns the times of a save that has ended, once.
  std::optional<SaveTimes> poll();
  /// Waits for its end and returns them.
  std::optional<SaveTimes> wait();

 private:
  void copy(const CheckpointShard& shard);
  /// Returns the times of a save that has ended without an error, once.
  std::optional<SaveTimes> take_times();

  CheckpointShard copy_;
  std::future<bool> copied_;     ///< Whether the copy was made; not valid once it was asked.
  SaveTimes times_;              ///< Times of the save before, without that of writing.
  std::optional<double> write_;  ///< Seconds of a save that ended without an error.
  BackgroundTask task_;          ///< Destroyed first, since its thread uses the others.
};

}  // namespace moesaic
