// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "moesaic/parallel/group.h"

namespace moesaic {

/// Takes the mean of gradients over the processes of a group while the backward pass still
/// computes others: in buckets, by c10d's Reducer.
class GradientReducer {
 public:
  static constexpr size_t kBucketBytes = size_t{25} << 20;  ///< As in c10d's DDP.

  /// `parameters` that require gradients, in the order in which the network uses them. With a group
  /// of one process nothing is reduced, with one that only counts nothing but counted.
  GradientReducer(std::vector<at::Tensor> parameters, const Group& group, Traffic traffic,
                  size_t bucket_bytes = kBucketBytes);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Makes the backward pass of `loss` reduce the gradients, with what earlier passes accumulated;
  /// they are reduced when it ends.
  void prepare(const at::Tensor& loss);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
