// SPDX-License-Identifier: Apache-2.0
// What all subcommands need of the command line: checks of option values, help that fits a
// terminal, and what is wrong with a line that cannot be read.
#pragma once

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include <fmt/ranges.h>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/parallel/process_mesh.h"

namespace moesaic::tools {

/// Declares a subcommand: what it does, as a sentence in the imperative, and one way to call it,
/// without the program's name, below `notes` at the end of its help.
CLI::App* add_verb(CLI::App& app, const std::string& name, const std::string& does,
                   const std::string& example, const std::string& notes = "");

/// Declares an option or an argument, whose text is to satisfy `check`.
template <class Value>
CLI::Option* add_value(CLI::App& verb, const std::string& name, Value& value,
                       const std::string& type, const CLI::Validator& check,
                       const std::string& help) {
  return verb.add_option(name, value, help)->check(check)->type_name(type);
}

/// Names of files and folders.
CLI::Validator not_empty();

/// Declares an option or an argument whose text must not be empty, such as the name of a file.
template <class Text>
CLI::Option* add_text(CLI::App& verb, const std::string& name, Text& text, const std::string& type,
                      const std::string& help) {
  return add_value(verb, name, text, type, not_empty(), help);
}

/// Declares the network, or several, that a subcommand reads; `more` ends the help.
template <class Path>
void add_checkpoint(CLI::App& verb, const std::string& name, Path& path,
                    const std::string& more = "", const std::string& type = "CHECKPOINT") {
  add_text(verb, name, path, type,
           "checkpoint, export, or run (its newest checkpoint; RUN/best: its best)" + more)
      ->required();
}

/// A whole number in decimal digits, within these.
CLI::Validator whole_number(int64_t min, int64_t max);

/// A number such as 0.5 or 1e-2, within these.
CLI::Validator number(double min, double max);

/// A dataset's name, description or folder that can be read; its files may be missing.
CLI::Validator known_dataset();

/// Images at a time.
CLI::Validator batch_size();

/// Declares --device, "cpu" or "cuda"; a device that this build or machine lacks is wrong use.
CLI::Option* add_device(CLI::App& verb, std::string& device);

/// Declares --precision, that of products in a network, with the dtypes to choose from.
CLI::Option* add_precision(CLI::App& verb, std::string& precision, std::vector<std::string> names);

/// Declares --trust of a subcommand that reads networks, see LoadOptions.
CLI::Option* add_trust(CLI::App& verb, bool& trust);

/// One of these words.
CLI::Validator one_of_words(std::vector<std::string> words);

/// Breaks the lines of help at 100 columns. Of an argument that may be given by its place or as an
/// option, only the place is called required and described.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
};

/// Returns the arguments of "help data pack" as those of "data pack --help", all others unchanged.
std::vector<const char*> without_help_verb(const CLI::App& app, int argc, const char* const* argv);

/// Returns what is wrong with the command line as a message: the first word that no subcommand or
/// option has, with the nearest one, else what `error` says.
std::string command_line_problem(const CLI::App& app, const CLI::Error& error, int argc,
                                 const char* const* argv);

/// Joins the processes that torchrun, mpirun or srun started beside this one; null where it is
/// alone.
std::shared_ptr<const ProcessMesh> init_process_mesh(const ParallelConfig& config,
                                                     const std::string& device);

/// Runs `action` of a subcommand together with the others. Where it fails, or another runs another
/// subcommand, one process says why, and all of them end: this function does not return then. With
/// null it only runs the action.
void run_distributed(const std::string& verb, const std::shared_ptr<const ProcessMesh>& processes,
                     const std::function<void()>& action);

/// Throws Error (usage) where several processes were started: each would write what this subcommand
/// writes.
void require_single_process(std::string_view verb);

/// Logs what was written and its size: a file, a folder, or files that begin with `path`.
void log_written(const fs::path& path);

/// Declares -h and --help, which may be followed by words; without any, the help of the subcommand
/// and what `topic` says of no words are printed.
void add_topic_help(CLI::App& verb, const std::string& help,
                    std::function<std::string(const std::vector<std::string>& words)> topic);

/// The program as it was called, quoted for a shell.
void remember_call(const char* program);
const std::string& called_as();

// The subcommands of the program, one file each. A subcommand declares its options and a callback;
// what the callback throws as Error becomes one line on standard error and the exit code. Stopped,
// thrown before a result is written, becomes 128 + the signal.

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
