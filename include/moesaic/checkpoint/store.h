// SPDX-License-Identifier: Apache-2.0
// Checkpoints: directories that are either complete or absent.
//
//   model.safetensors      parameters and buffers of the model, by name
//   optimizer.safetensors  tensors of the optimizer; absent if there are none
//   state.json             progress of the run: step, phase, position in the data, random states
//   config.json            {"format", "version", "model", "data", "input", "run"}, to rebuild it
//   MANIFEST.json          size and SHA-256 of each of the other files; written last
//
// Tensors of several processes are in shards with an index: checkpoint/save.h.
#pragma once

#include "moesaic/base/error.h"
#include "moesaic/checkpoint/tensors.h"
#include "moesaic/config/document.h"
#include "moesaic/config/value.h"
#include "moesaic/data/preprocess.h"
#include "moesaic/models/model.h"

namespace moesaic {

/// A checkpoint in memory.
struct Checkpoint {
  Json config;  ///< Has at least "model"; saving adds "format" and "version".
  Json state;
  TensorMap model;
  TensorMap optimizer;
  fs::path folder = {};  ///< Directory it was read from.
};

/// What load_checkpoint() reads and checks.
struct LoadOptions {
  bool verify = true;      ///< Verify SHA-256 hashes, not only sizes.
  bool load_model = true;  ///< Read model.safetensors; its hash is verified either way.
  /// Read optimizer.safetensors, to resume. Otherwise it is not hashed either, and a checkpoint
  /// within a phase that averages weights (ema_decay) has the average for its model.
  bool load_optimizer = true;
  bool mmap = false;  ///< Leave model.safetensors in the file, see read_weights().
  /// Read a TorchScript file that carries no safetensors through LibTorch's unpickler, for which it
  /// has to be from someone who is trusted.
  bool trust = false;
  bool accept_program =
      false;  ///< Take a program too (checkpoint/program.h), which has no tensors.
};

/// Returns the tensor of a name.
using TensorMaker = std::function<at::Tensor(const std::string& name)>;

/// Writes a checkpoint under a temporary name, syncs it and renames it; an older one of that name
/// is replaced atomically. Of a network that is not in memory as a whole, without an optimizer,
/// checkpoint.model has the shapes, which may be on the meta device, `make` makes one tensor at a
/// time, and `progress` is called with the bytes done and the total; it may throw to cancel.
void save_checkpoint(const fs::path& folder, const Checkpoint& checkpoint,
                     const TensorMaker& make = {},
                     const std::function<void(uint64_t done, uint64_t total)>& progress = {});

/// Error for a directory that is not the checkpoint that was written: MANIFEST.json or a file that
/// it lists is missing, or a file has another size or another SHA-256. After any other Error the
/// checkpoint may be whole: the disk failed, or another version of the program wrote it.
class DamagedCheckpointError : public Error {
 public:
  /// `message` begins with the path.
  explicit DamagedCheckpointError(const std::string& message)
      : Error(ErrorKind::failure, message) {}
};

/// Reads a checkpoint directory. Throws DamagedCheckpointError with the file, the expected and the
/// found value; Error (failure) where a file cannot be read, MANIFEST.json is of an unknown version
/// or shards do not make up whole tensors. Files are hashed in parallel.
Checkpoint load_checkpoint(const fs::path& folder, const LoadOptions& options = {});

/// Returns the bytes of the files with the weights of a checkpoint or an export in a folder.
uint64_t weights_bytes(const fs::path& folder);

/// Returns nearest_sibling() of those that load_newest_checkpoint() takes.
std::string nearest_network(const fs::path& path);
/// Throws Error (usage) for a run or checkpoint that is not there, with the hint `near`, or else
/// what makes one.
[[noreturn]] void fail_no_network(const fs::path& path, const std::string& near);

/// Reads the newest checkpoint of a run. A checkpoint directory stands for itself, and so does an
/// export to safetensors or TorchScript, which has neither state nor optimizer. For a run
/// directory, or its checkpoints/, it is load_newest_step(). Each file is hashed and read once.
/// Throws Error: usage if the path is neither, failure if no checkpoint is complete.
Checkpoint load_newest_checkpoint(const fs::path& run_or_checkpoint,
                                  const LoadOptions& options = {});

/// Reads the complete step_N with the largest N in a run's checkpoints/, each with the options that
/// `options_of` returns for its directory. Damaged ones are skipped with a warning, and only those:
/// throws the Error of one that could not be read, since it may be whole.
Checkpoint load_newest_step(const fs::path& checkpoints,
                            const std::function<LoadOptions(const fs::path& step)>& options_of);

/// Returns N of a directory named step_N, as step_name(N) names the checkpoints of a run.
std::optional<int64_t> step_of(const fs::path& folder);
/// Returns "step_N".
std::string step_name(int64_t step);

/// Returns the step_N directories in a run's checkpoints/ by descending N, complete or not, and
/// links to directories of such names. There are none where checkpoints/ is missing; throws Error
/// (failure) where it cannot be listed.
std::vector<fs::path> step_checkpoints(const fs::path& checkpoints);

/// Returns what has a MANIFEST.json in a folder, checkpoints of any name, sorted. What cannot be
/// listed or looked at is left out.
std::vector<fs::path> saved_checkpoints(const fs::path& folder);

/// Deletes older checkpoints step_N in a run's checkpoints/, so that the newest `keep` (at least 1)
/// remain. Call it once a new one is in place. Nothing else is touched, nor a step_N that has no
/// manifest.
void remove_old_checkpoints(const fs::path& checkpoints, int64_t keep);

/// Returns the configuration of a loaded checkpoint's network, with positions for messages.
Value model_config(const Checkpoint& checkpoint);

/// Returns the network of a loaded checkpoint on the meta device. Throws Error unless its tensors
/// fit that network and are finite.
std::shared_ptr<Model> meta_model_of(const Checkpoint& checkpoint);

/// Builds the model that `config` describes and loads `tensors`, read from `from`, strictly; it is
/// set to evaluate. Throws Error, before anything is allocated, where they do not fit.
std::shared_ptr<Model> model_of(const Value& config, const TensorMap& tensors,
                                const std::string& from);

/// Builds the model of a loaded checkpoint. Throws Error if a tensor is not finite.
std::shared_ptr<Model> model_of(const Checkpoint& checkpoint);

/// Builds the model of a checkpoint's config.json and loads its tensors strictly. Throws Error if a
/// tensor is not finite. `trust` is LoadOptions'.
std::shared_ptr<Model> load_model(const fs::path& run_or_checkpoint, bool trust = false);

/// Key of config.json under which a checkpoint has its InputSpec.
inline constexpr const char* kInputKey = "input";

/// Returns how a checkpoint's network takes images. Checkpoints of version 0.2.0 and before do not
/// store it: mean and std are then those of the data's description, if it is still there, and a
/// warning says so. Throws Error (failure) where what is stored is out of range or does not fit
/// `model`, the checkpoint's network.
InputSpec input_spec_of(const Checkpoint& checkpoint, const Model& model);

/// Returns the names of the outputs of a checkpoint's network, in order; none where they are not
/// stored.
std::vector<std::string> class_names_of(const Checkpoint& checkpoint);
/// Returns these names for a run's newest checkpoint, or for a checkpoint, without checking its
/// hashes.
std::vector<std::string> class_names_of(const fs::path& run_or_checkpoint, bool trust = false);

}  // namespace moesaic
