// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/base/error.h"

namespace moesaic {

/// Error of a routing on the CPU whose logits are NaN or infinite, of kind `failure`. In training
/// it says that the network diverged, so that callers may want to report it in their own words.
class NonFiniteLogits : public Error {
 public:
  explicit NonFiniteLogits(const std::string& message) : Error(ErrorKind::failure, message) {}
};

}  // namespace moesaic
