// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace moesaic {

/// Numbers of images by true and by predicted class. Only pairs that occur take memory.
class Confusion {
 public:
  /// Adds classes [B] int64.
  void add(const at::Tensor& labels_B, const at::Tensor& predicted_B);

  bool empty() const { return counts_.empty(); }
  int64_t count(int64_t label, int64_t predicted) const;
  /// Returns the number of images of a class.
  int64_t images(int64_t label) const;

 private:
  std::map<int64_t, std::map<int64_t, int64_t>> counts_;  ///< By true, then by predicted class.
};

}  // namespace moesaic
