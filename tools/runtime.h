// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moesaic::tools {

/// Settings of the C and OpenMP runtimes that suit short tensor operations. The OpenMP ones are
/// read before main(), so the program starts itself again with them; a user's own settings are left
/// alone.
void tune_runtime(char** argv);

/// Where several processes were started together, leaves the log to process 0, but for errors.
void let_the_leader_speak();

/// Makes glibc keep freed buffers, as tune_runtime() does for every verb but `bench`.
void keep_freed_memory();

}  // namespace moesaic::tools
