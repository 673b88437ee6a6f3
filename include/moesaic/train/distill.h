// SPDX-License-Identifier: Apache-2.0
// Distillation (Hinton et al., arXiv 1503.02531): a network learns the outputs of another one, such
// as a pruned network those of the unpruned one.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "moesaic/data/dataset.h"
#include "moesaic/models/model.h"
#include "moesaic/train/phase_config.h"

namespace moesaic {

/// Returns the distillation loss of rows of logits [R, classes] of which `teacher_logits` are the
/// teacher's, at temperature T:
///
///     T^2 mean over rows of l(logits / T, p) - l(teacher_logits / T, p)
///
/// where l is training_losses() of this name without smoothing and p are the probabilities of
/// teacher_logits / T: of softmax, T^2 KL(p || softmax(logits / T)); of sigmoid, that of each
/// class, summed. The factor keeps gradients of the size that they have at T = 1. A float32 scalar.
at::Tensor distillation_loss(const std::string& loss, const at::Tensor& logits,
                             const at::Tensor& teacher_logits, double temperature);

/// A frozen network in evaluation mode.
class Teacher {
 public:
  /// Reads the checkpoint or run `path` to the device; products run in `precision`, see Autocast.
  Teacher(const std::string& path, at::Device device, std::string precision);

  /// Returns the teacher's logits of the images that `student` is trained on now. Where processes
  /// share the student's batch, it routes as one process would.
  at::Tensor logits(const Model& student, const at::Tensor& images) const;

 private:
  std::shared_ptr<Model> model_;
  std::string precision_;
};

/// Returns the setting of the phase that names a teacher, null where it has none.
std::string* find_teacher(PhaseConfig& phase);

/// A teacher on the meta device, with the names of its outputs and mean and std of its inputs if
/// they are known.
struct PlannedTeacher {
  std::shared_ptr<Model> shape;
  std::vector<std::string> classes;
  std::vector<double> mean = {}, std = {};
};

/// Returns the teacher that a checkpoint holds. Where there is none, returns nothing with a warning
/// if it `may_be_missing`; else throws Error (usage) with the location of the setting, also for a
/// name among the run's `phases`, since the caller looked up the `earlier` ones.
std::optional<PlannedTeacher> teacher_in(const std::string& teacher,
                                         const SettingLocations& locations,
                                         std::vector<std::string> earlier,
                                         const std::vector<PhaseConfig>& phases,
                                         bool may_be_missing);

/// Throws Error (usage), likewise, where a teacher lacks the inputs, the members or the classes of
/// the network; warns where mean or std of its inputs are not those of `data`.
void check_teacher(const PlannedTeacher& teacher, const SettingLocations& locations,
                   const Model& model, const std::vector<std::string>& classes,
                   const DatasetInfo& data);

}  // namespace moesaic
