// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/error.h"

#include "moesaic/base/text.h"

namespace moesaic {

Error::Error(ErrorKind kind, const std::string& message)
    : std::runtime_error(abridged(message)), kind_(kind) {}

}  // namespace moesaic
