// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesaic {

/// Bytes that this process can have at most: the machine's memory, or less where a container or a
/// limit of the shell says so.
double memory_limit();

/// "3.2 GiB", in the largest unit that leaves at least 1.
std::string bytes_text(double bytes);

}  // namespace moesaic
