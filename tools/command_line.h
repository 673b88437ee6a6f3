// SPDX-License-Identifier: Apache-2.0
// What all verbs need of the command line: checks of option values, and what was misspelt in a line
// that cannot be read.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace moesaic::tools {

/// Names of files and folders.
CLI::Validator not_empty();

/// A whole number in decimal digits, within these.
CLI::Validator whole_number(int64_t min, int64_t max);

/// A dataset's name, description or folder that can be read; its files may be missing.
CLI::Validator known_dataset();

/// Images at a time.
CLI::Validator batch_size();

/// Declares --device, "cpu" or "cuda"; a device that this build or machine lacks is wrong use.
CLI::Option* add_device(CLI::App& verb, std::string& device);

/// Declares --precision, that of products in a network.
CLI::Option* add_precision(CLI::App& verb, std::string& precision);

/// "unknown verb 'traim'; did you mean 'train'?" for the first word that no verb or option has, ""
/// where every word is known and the line is wrong in another way.
std::string unknown_word(const CLI::App& app, int argc, const char* const* argv);

/// The program as it was called, quoted for a shell.
void remember_call(const char* program);
const std::string& called_as();

}  // namespace moesaic::tools
