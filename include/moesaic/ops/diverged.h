// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/base/error.h"

namespace moesaic {

/// Error, of kind `failure`, of values with which no training can go on: NaN or infinity in logits
/// that are routed on the CPU or in what a step computes, or a step that is too large. The trainer
/// says where it happened and what to try.
class Diverged : public Error {
 public:
  /// `what` says where it happened.
  explicit Diverged(const std::string& what) : Error(ErrorKind::failure, what) {}
};

}  // namespace moesaic
