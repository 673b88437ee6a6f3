// SPDX-License-Identifier: Apache-2.0
// Saving behind training: a thread copies the tensors, then writes the copy.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>

#include "moesaic/base/background_task.h"
#include "moesaic/base/error.h"
#include "moesaic/checkpoint/parts.h"

namespace moesaic {

/// Copies tensors to contiguous ones on the CPU in `copy`, which then has the same names. Memory
/// of a tensor of the same name, shape and dtype that is there already is used again. Nothing may
/// read `copy` meanwhile. With `check`, returns the name of a tensor that holds NaN or infinity;
/// empty where none does.
std::string snapshot(const TensorMap& tensors, TensorMap& copy, bool check = false);

/// Thrown where a network to save holds NaN or infinity: no program would load the checkpoint.
class NotFinite : public Error {
 public:
  explicit NotFinite(const std::string& what) : Error(ErrorKind::failure, what) {}
};

/// How long a save took, in seconds.
struct SaveTimes {
  double wait = 0.0;   ///< For the save before; training stood still.
  double copy = 0.0;   ///< That training waited for the snapshot.
  double write = 0.0;  ///< Behind training.

  double pause() const { return wait + copy; }
};

/// Writes checkpoints one after the other on a thread, from a copy whose memory is kept for the
/// next one. An error of a save is thrown once, as it was, by the next call; the destructor waits
/// and logs it. A model that is not finite is not written: the error is NotFinite.
class BackgroundSave {
 public:
  using Write = std::function<void(const CheckpointPart& copy)>;

  /// Waits for the save before, then copies `part` and has `write` called with the copy, both on
  /// the thread: no tensor of `part` may change before finish_copy() returns. Returns the times of
  /// the save before, unless poll() or wait() did. `wait_first`, if any, is called before it waits,
  /// and its time counts as that.
  std::optional<SaveTimes> start(CheckpointPart part, Write write,
                                 const std::function<void()>& wait_first = {});

  /// Waits until the copy is made; throws the save's error where it cannot be.
  void finish_copy();

  /// Returns whether a save goes on.
  bool runs() const { return task_.runs(); }
  /// Returns the times of a save that has ended, once.
  std::optional<SaveTimes> poll();
  /// Waits for its end and returns them.
  std::optional<SaveTimes> wait();

 private:
  void copy(const CheckpointPart& part);
  /// Returns the times of a save that has ended without an error, once.
  std::optional<SaveTimes> take_times();

  CheckpointPart copy_;
  std::future<bool> copied_;     ///< Whether the copy was made; not valid once it was asked.
  SaveTimes times_;              ///< Without those of the thread.
  std::optional<double> write_;  ///< Seconds of a save that ended without an error.
  BackgroundTask task_;          ///< Its thread uses the others, so it is destroyed first.
};

}  // namespace moesaic
