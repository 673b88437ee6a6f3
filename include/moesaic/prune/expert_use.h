// SPDX-License-Identifier: Apache-2.0
// What a network's experts do on calibration images: the numbers behind criteria that need images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "moesaic/models/model.h"

namespace moesaic {

/// Exponents of a term g^a ||E(x)||^b of a routed row: its gate g and the norm of its expert's
/// output.
struct Powers {
  int gate = 0, norm = 0;
  auto operator<=>(const Powers&) const = default;
};

/// Sums over the tokens that a layer routed, [E] float64 by the experts' ids; 0 for pruned experts.
struct LayerUse {
  int64_t tokens = 0;
  std::map<Powers, at::Tensor> sums;  ///< Over an expert's rows, of the terms that criteria
                                      ///< sum or mean over.
  at::Tensor selections;   ///< Tokens that select the expert, with those that find no room there.
  at::Tensor first_gates;  ///< Over tokens whose first choice it is, and that it computes, of their
                           ///< gates; where tokens do not choose, of their largest gates.
  at::Tensor outputs_Eo;   ///< Over an expert's rows, of its output, [E, o].

  /// Returns the sum of these powers over the rows of one expert.
  double sum(Powers powers, int64_t expert) const;
  int64_t rows(int64_t expert) const;
  /// Returns the mean output of each expert over its rows, [E, o]; 0 without rows.
  at::Tensor mean_outputs_Eo() const;
};

/// By block.
using ExpertUse = std::map<int64_t, LayerUse>;

/// Sums up the use of a network's experts in the forward passes of its lifetime, which compute
/// every expert twice.
class ExpertUseMeter {
 public:
  explicit ExpertUseMeter(const Model& model);
  ~ExpertUseMeter();
  ExpertUseMeter(const ExpertUseMeter&) = delete;
  ExpertUseMeter& operator=(const ExpertUseMeter&) = delete;

  const ExpertUse& use() const { return use_; }

 private:
  std::vector<MoEBlock> blocks_;
  ExpertUse use_;
};

}  // namespace moesaic
