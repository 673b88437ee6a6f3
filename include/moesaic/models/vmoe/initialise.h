// SPDX-License-Identifier: Apache-2.0
// Initialises a V-MoE from the values of another one: the same network, or the start of fine-tuning
// or upcycling.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/models/vmoe/arrays.h"
#include "moesaic/models/vmoe/rules.h"

namespace moesaic {

/// Makes the target's tensors one at a time, so that at most two of them are in memory at once.
class VMoEInitialiser {
 public:
  /// Plans all moves, reads nothing. `arrays` must outlive this. Throws Error as plan_moves() does.
  VMoEInitialiser(const VMoEArrays& arrays, const VMoEConfig& target, const VMoERules& rules,
                  const std::string& rules_from = "");

  const VMoEPlan& plan() const { return plan_; }
  const std::vector<VMoETensor>& tensors() const { return tensors_; }
  /// Returns the names of the target's arrays whose values the rules change.
  std::vector<std::string> transformed() const;

  /// Draws the arrays that no rule maps to, with the values of a new network of this seed.
  void draw_fresh(const VMoEConfig& target, uint64_t seed);
  /// Returns the tensor, float32 and contiguous.
  at::Tensor tensor(const VMoETensor& tensor) const;

 private:
  at::Tensor array(const VMoETensor& tensor, const VMoEArray& array) const;

  const VMoEArrays& arrays_;
  std::vector<VMoETensor> tensors_;
  VMoEPlan plan_;
  TensorMap fresh_;  ///< Tensors with an array that is drawn.
};

/// Returns whether these V-MoEs differ in image size, members, or the layer before the head, which
/// the start of fine-tuning converts.
bool differs_as_in_fine_tuning(const Model& a, const Model& b);

/// Copies `values`, those of a network like `source`, to `target` by `rules`; arrays that no rule
/// maps to keep their values. On the meta device this only checks. Messages start with `from`.
/// Throws Error as plan_moves() does, before anything changes.
void initialise_vmoe(Model& target, const Model& source, const TensorMap& values,
                     const VMoERules& rules, const std::string& from);

}  // namespace moesaic
