// SPDX-License-Identifier: Apache-2.0
// The network that a run begins with.
#pragma once

#include <memory>
#include <optional>

#include "moesaic/checkpoint/store.h"
#include "moesaic/models/model.h"
#include "moesaic/train/run_config.h"

namespace moesaic {

/// What a run starts from. `init` is read and hashed once, however much is made of it.
class RunStart {
 public:
  /// Reads config.init, if it is given. Throws Error: usage, at its place, for a path that is
  /// neither a run nor a checkpoint.
  explicit RunStart(const RunConfig& config);

  /// The network of config.model, or where that is null of config.init, on the meta device: shapes
  /// without numbers (build_model_shape()).
  std::shared_ptr<Model> shape() const;

  /// The network with the values that the first step begins with: those of config.init, or else
  /// initial ones by config.seed. Where config.model differs from the network of `init` as its
  /// family allows it in fine-tuning, or the first phase gives a new head, the rest is taken.
  /// Throws Error for what does not fit, and for what this machine's memory does not hold.
  std::shared_ptr<Model> model() const;

 private:
  RunConfig config_;
  std::optional<Checkpoint> init_;
};

/// RunStart(config).shape() and .model(), for who needs one of them.
std::shared_ptr<Model> build_initial_shape(const RunConfig& config);
std::shared_ptr<Model> build_initial_model(const RunConfig& config);

/// Checks without memory for it what RunStart::model() would load, by its configuration and its
/// files' hashes.
void check_initial_weights(const RunConfig& config);

}  // namespace moesaic
