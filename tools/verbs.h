// SPDX-License-Identifier: Apache-2.0
// The subcommands of the program, one file each. A subcommand declares its options and a callback;
// what the callback throws as Error becomes one line on standard error and the exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace moesaic::tools {

/// `exit_code` is 0 and may be raised by a subcommand's callback, e.g. to 130 after a run stopped
/// by a signal.
void add_train(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_predict(CLI::App& app, int& exit_code);
void add_prune(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_data(CLI::App& app, int& exit_code);
void add_list(CLI::App& app, int& exit_code);
void add_import(CLI::App& app, int& exit_code);
void add_reproduce(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_plot(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);

}  // namespace moesaic::tools
