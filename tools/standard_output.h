// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesaic::tools {

/// Where the caller closed a standard stream, opens /dev/null in its place, so that no file that is
/// opened later takes its number and what is printed. Writing to a closed standard output fails.
void hold_standard_streams();

/// Escapes control characters of what std::cout and std::cerr print on a terminal, and remembers
/// why the first write to standard output failed. checked_output() needs this call before it.
void protect_terminals();

/// `exit_code`, or 1 and a line on standard error where it is 0 but what was printed has not
/// arrived.
int checked_output(int exit_code);

}  // namespace moesaic::tools
