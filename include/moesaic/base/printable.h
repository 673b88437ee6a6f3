// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

/// A text out of a file, fit for a message: quoted, on one line, of bounded length.
std::string printable(std::string_view name);

}  // namespace moesaic
