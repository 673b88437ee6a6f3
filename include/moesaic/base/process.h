// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/filesystem.h"

namespace moesaic {

/// Runs a program from PATH, without a shell, with `input` on its standard input, and waits for it.
/// The program's standard output is redirected to standard error, since ours may carry a JSON
/// document; an `output` that is not null gets both instead. The program inherits the environment,
/// overridden by the NAME=VALUE entries of `environment`, and runs in `folder`, by default where
/// this process is. Returns its exit status, or 128 + n if signal n killed it. A program that
/// closes its input early is not an error. `poll` is called while the program runs and after its
/// end; where it throws, the program is killed first. Throws Error (failure) with the program's
/// name if it cannot be started.
int run_with_input(const std::vector<std::string>& argv, std::string_view input,
                   const std::vector<std::string>& environment = {}, const fs::path& folder = {},
                   std::string* output = nullptr, const std::function<void()>& poll = {});

/// Returns the path of a program found on PATH, or "" if there is none.
fs::path find_program(const std::string& name);

/// Returns the word quoted for a shell: unchanged if it is safe, else in single quotes.
std::string shell_quoted(std::string_view word);

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
