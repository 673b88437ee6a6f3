// SPDX-License-Identifier: Apache-2.0
// The first values of a V-MoE from those of another one: the same network, or what fine-tuning or
// upcycling begins with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/models/vmoe/arrays.h"
#include "moesaic/models/vmoe/rules.h"

namespace moesaic {

/// Makes the target's tensors one at a time, so that no more than two of them are ever held.
class VMoEInitialiser {
 public:
  /// Plans all of it, reads nothing. `arrays` must outlive this. Throws Error as plan_moves() does.
  VMoEInitialiser(const VMoEArrays& arrays, const VMoEConfig& target, const VMoERules& rules,
                  const std::string& rules_from = "");

  const VMoEPlan& plan() const { return plan_; }
  const std::vector<VMoETensor>& tensors() const { return tensors_; }
  /// Arrays of the target whose values the rules change.
  std::vector<std::string> transformed() const;

  /// Draws what nothing maps to as a new network of this seed has it.
  void draw_fresh(const VMoEConfig& target, uint64_t seed);
  /// float32, contiguous.
  at::Tensor tensor(const VMoETensor& tensor) const;

 private:
  at::Tensor array(const VMoETensor& tensor, const VMoEArray& array) const;

  const VMoEArrays& arrays_;
  std::vector<VMoETensor> tensors_;
  VMoEPlan plan_;
  TensorMap fresh_;  ///< tensors that have a fresh array
};

/// Are these V-MoEs alike but for their images' size, their classes and their members, as
/// fine_tuning_rules() bridges?
bool differs_as_in_fine_tuning(const Model& a, const Model& b);

/// Gives `target` the values that `rules` make of `source`'s; what they map nothing to stays. Both
/// are V-MoEs; `from` begins messages. Throws Error as plan_moves() does, before anything changes.
void initialise_vmoe(Model& target, const Model& source, const VMoERules& rules,
                     const std::string& from);

}  // namespace moesaic
