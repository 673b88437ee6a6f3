// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moesaic/base/error.h"

namespace moesaic {

/// A collective failed, since a process was lost or did not come in time.
class LostProcess : public Error {
 public:
  explicit LostProcess(const std::string& what) : Error(ErrorKind::failure, what) {}
};

}  // namespace moesaic
