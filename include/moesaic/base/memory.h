// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesaic {

/// Returns the memory limit of this process in bytes: the machine's memory, or less if a container
/// or ulimit restricts it.
double memory_limit();

/// Returns the memory that this process has now, in bytes, with the libraries that it uses; 0 where
/// the system does not tell.
double resident_memory();

/// Returns to the system what the C library keeps of freed memory.
void release_freed_memory();

/// Throws Error (usage), "<where>: <what> needs ... of memory", if `bytes` exceeds memory_limit().
void check_memory(double bytes, const std::string& what, const std::string& where);

}  // namespace moesaic
