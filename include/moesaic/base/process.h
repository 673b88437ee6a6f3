// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

/// Runs a program from PATH, without a shell, with `input` on its standard input, and waits for it.
/// What it prints goes to standard error, since standard output may carry a JSON document.
/// It inherits the environment with those NAME=VALUE in front.
/// Returns its exit status, 128 + n when signal n ended it. A program that stops reading early is
/// no error. Throws Error(failure) that names the program when it cannot be started.
int run_with_input(const std::vector<std::string>& argv, std::string_view input,
                   const std::vector<std::string>& environment = {});

/// Where on PATH a program is, "" where it is not.
std::filesystem::path find_program(const std::string& name);

/// The word as a shell takes it: as it is, or in single quotes where something in it would be read
/// otherwise.
std::string shell_quoted(std::string_view word);

}  // namespace moesaic
