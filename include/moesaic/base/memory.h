// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesaic {

/// Bytes that this process can have at most: the machine's memory, or less where a container or a
/// limit of the shell says so.
double memory_limit();

/// Throws Error (usage), "<where>: <what> needs ... of memory", where this machine has less.
void check_memory(double bytes, const std::string& what, const std::string& where);

}  // namespace moesaic
