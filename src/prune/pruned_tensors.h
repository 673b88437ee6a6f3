// SPDX-License-Identifier: Apache-2.0
// A network's tensors after pruning, made one at a time from those before, so that neither network
// need be in memory.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "moesaic/models/model.h"
#include "moesaic/prune/plan.h"

namespace moesaic {

class PrunedTensors {
 public:
  /// `shape` is the network before `plan` is applied, on any device; `values` are its tensors.
  /// Both `values` and `plan` must outlive this.
  PrunedTensors(const Model& shape, const TensorMap& values, const PrunePlan& plan);

  /// Returns what makes each tensor by its name. `pruned` is the same network after the plan, whose
  /// parameters are therefore those of before, by identity.
  std::function<at::Tensor(const std::string& name)> maker(const Model& pruned) const;

 private:
  /// What a tensor after pruning is made of: the one of `name` before, of whose rows those of the
  /// kept experts of `block` stay where its size differs; or what experts of `block` left behind.
  struct Source {
    std::string name;
    at::Tensor shape;
    int64_t block = -1;
    bool stands_in = false;
  };
  struct Before {
    std::vector<int64_t> kept, removed;
    std::string stand_in;  ///< Its name, "" where there is none.
  };

  std::map<std::string, Source> sources(const Model& pruned) const;
  at::Tensor make(const Source& source) const;
  at::Tensor stand_in(const Source& source) const;
  const PruneLayerPlan& layer(int64_t block) const;

  const TensorMap& values_;
  const PrunePlan& plan_;
  std::map<const void*, std::string> names_;  ///< Before pruning, by the parameter.
  std::map<int64_t, Before> before_;
};

}  // namespace moesaic
