// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/base/error.h"

namespace moesaic {

/// Error, of kind `failure`, for values that end training: NaN or infinity in logits routed on the
/// CPU or in the results of a step, or a step that is too large. The trainer adds the place and
/// what to try.
class DivergedError : public Error {
 public:
  /// `what` says where it happened.
  explicit DivergedError(const std::string& what) : Error(ErrorKind::failure, what) {}
};

}  // namespace moesaic
