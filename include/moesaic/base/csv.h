// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moesaic {

/// Returns a line of comma-separated values (RFC 4180, with a bare line feed).
std::string csv_line(const std::vector<std::string>& fields);

}  // namespace moesaic
