// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moesaic::tools {

/// Settings of the C and OpenMP runtimes that suit short tensor operations. The OpenMP ones are
/// read before main(), so the program starts itself again with them; a user's own settings are left
/// alone.
void tune_runtime(char** argv);

/// Returns whether other processes were started with this one and process 0 is another, which says
/// what concerns all of them.
bool follows_a_leader();
/// Logs an error of the user. What is wrong in every process is said by process 0; one that follows
/// it waits some seconds for it before it speaks.
void log_usage_error(const std::string& what);

/// Leaves the log to process 0 where this one follows it, but for errors and, once the processes
/// have met, for warnings that only this one has. MOESAIC_LOG of the user has all that it asks for
/// written, with the number of the process before it.
void let_the_leader_speak();

/// Writes why this process ends into the file from which torchrun reads the first error of all
/// (TORCHELASTIC_ERROR_FILE), where there is one.
void record_error(const std::string& what);

/// Ends the program by a line where a mapped file cannot be read any more (SIGBUS): it got shorter,
/// or its disk failed.
void explain_bus_errors();

/// Ends the process with `exit_code` without the destructors of loaded libraries. Those of CUDA
/// take a tenth of a second and read 120 MB of their own code from the disk.
[[noreturn]] void end_process(int exit_code);

/// Makes glibc keep freed buffers, as tune_runtime() does for every subcommand but `bench` and
/// those that stream tensors. By default it returns those of a few MiB to the kernel and pays for
/// new zeroed pages at the next allocation, about a tenth of a training step.
void keep_freed_memory();

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
