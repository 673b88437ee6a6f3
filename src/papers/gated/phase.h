// SPDX-License-Identifier: Apache-2.0
// What the phases of gated mixtures share.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/nn/gated_mixture.h"
#include "moesaic/train/online_phase.h"

namespace moesaic {

struct Samples {
  at::Tensor x_Nd, y_N;  ///< float32, on the CPU.
};

/// Batches of a dataset in order, without an incomplete last one of an epoch. They begin where the
/// seed says, so that runs of different seeds see different samples.
class SampleSource {
 public:
  SampleSource(std::shared_ptr<const Dataset> data, uint64_t seed, int64_t batch);
  /// Returns the samples of `count` batches from number `first` on.
  Samples batches(int64_t first, int64_t count) const;

 private:
  Samples read(int64_t first, int64_t count) const;

  std::shared_ptr<const Dataset> data_;
  Samples all_;  ///< Of data that are not endless.
  int64_t offset_ = 0, batch_;
};

/// The mixture of a network, with its parameters copied to the CPU to work on.
class MixtureParameters {
 public:
  explicit MixtureParameters(const Model& model);

  at::Tensor a_kd, w_kd;
  /// Copies both to the network. Throws Diverged before that if a number is not finite.
  void write() const;
  const nn::GatedMixtureOptions& options() const { return mixture_->options(); }

  /// Returns the network's names of the regressors and the gates.
  static std::pair<std::string, std::string> names(const Model& model);

 private:
  std::shared_ptr<nn::GatedMixtureImpl> mixture_;
};

/// Which of its parameters a phase moves.
struct Moves {
  bool regressors = false, gates = false;

  /// Returns those that the phase's settings `trains` and `frozen` leave.
  Moves within(const PhaseConfig& phase, const Model& model) const;
  std::vector<std::string> names(const Model& model) const;
};

/// Completes the plan of a phase of `batch` samples a step that moves these parameters. Throws
/// Error (usage) unless the network has a gated mixture with 2 k - 1 <= d, the data are inputs of
/// its width with one real-valued target, and `trains` and `frozen` leave something to move. Warns
/// where the data's mixture has another number of experts.
void plan_gated(PhasePlan& plan, const PhasePlaces& places, const Model& model, const Dataset& data,
                int64_t batch, const Moves& moves);

/// A phase of a gated mixture: which parameters it moves, and its samples.
class GatedPhase : public OnlinePhase {
 protected:
  GatedPhase(const PhasePlan& plan, PhaseContext context, const Moves& moves);

  Moves moves_;  ///< Those that the settings leave.
  SampleSource samples_;
};

/// Shortens rows to the norm `radius`; 0 leaves all.
void project_rows(const at::Tensor& rows, double radius);

}  // namespace moesaic
