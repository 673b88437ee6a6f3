// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesaic {

/// Returns the memory limit of this process in bytes: the machine's memory, or less if a container
/// or ulimit restricts it.
double memory_limit();

/// Throws Error (usage), "<where>: <what> needs ... of memory", if `bytes` exceeds memory_limit().
void check_memory(double bytes, const std::string& what, const std::string& where);

}  // namespace moesaic
