// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>

#include "command_line.h"

#include "moesaic/base/file.h"
#include "moesaic/base/signal.h"
#include "moesaic/formats/image.h"
#include "runtime.h"

namespace {

int run(int given, const char* const* arguments) {
  CLI::App app{"moesaic: train, prune and ship mixture-of-experts networks for vision", "moesaic"};
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "print this help");
  app.set_version_flag("--version", MOESAIC_VERSION, "print the version");
  app.formatter(std::make_shared<moesaic::tools::HelpFormatter>());
  int exit_code = 0;
  namespace tools = moesaic::tools;
  for (const auto add :
       {tools::add_train, tools::add_eval, tools::add_predict, tools::add_prune, tools::add_export,
        tools::add_inspect, tools::add_data, tools::add_list, tools::add_import,
        tools::add_reproduce, tools::add_compare, tools::add_plot, tools::add_bench,
        tools::add_doctor}) {  // The most used ones first.
    add(app, exit_code);
  }
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 wrong use, 4 ended by a second signal, 128 + n stopped by "
      "signal n.\n\nExample: moesaic train models/vmoe/recipes/smoke.json --out checkpoints/mine");
  const auto words = tools::without_help_verb(app, given, arguments);
  const int argc = static_cast<int>(words.size());
  const char* const* argv = words.data();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // It asked for help.
    tools::log_usage_error(tools::command_line_problem(app, error, argc, argv));
    return 2;
  }
  return exit_code;
}

/// Ends the program by a line where its current folder was removed. In such a folder a constructor
/// of LibTorch ends it by a message of MKL about a library: .preinit_array is called before that,
/// and before sanitizers know the functions of the C library.
__attribute__((no_sanitize("address,thread,undefined"))) void check_current_folder() {
  char folder[PATH_MAX];
  if (::syscall(SYS_getcwd, folder, sizeof(folder)) > 0 || errno != ENOENT) return;
  constexpr std::string_view kText =
      "error: the current folder was removed; change to one that exists\n";
  ::syscall(SYS_write, STDERR_FILENO, kText.data(), kText.size());
  ::syscall(SYS_exit_group, 2);
}
__attribute__((section(".preinit_array"), used)) void (*first_of_all)() = &check_current_folder;

/// Returns a readable message for libraries' errors of memory and descriptors.
std::string without_jargon(const std::string& what) {
  if (what.find("Too many open files") != std::string::npos ||
      what.find("EMFILE") != std::string::npos) {
    return "too many open files: this process may have no more; raise the limit (ulimit -n)";
  }
  for (const std::string_view sign : {"can't allocate memory", "not enough memory",
                                      "Storage size calculation overflowed", "out of memory"}) {
    if (what.find(sign) != std::string::npos) {
      return "not enough memory; a smaller batch or model may do";
    }
  }
  return what.substr(0, what.find('\n'));
}

/// Says why the program ends.
void log_failure(const std::string& what) {
  const std::string line = moesaic::abridged(what);
  moesaic::tools::record_error(line);
  moesaic::log_error("{}", line);
}

int run_or_explain(int argc, char** argv) {
  namespace tools = moesaic::tools;
  try {
    moesaic::max_image_pixels();  // Once: as a setting of each image, it would corrupt them all.
    return run(argc, argv);
  } catch (const moesaic::Error& error) {
    const bool usage = error.kind() == moesaic::ErrorKind::usage;
    usage ? tools::log_usage_error(error.what()) : log_failure(error.what());
    return error.exit_code();
  } catch (const moesaic::Stopped& stopped) {
    moesaic::log_info("stopped; no result was written");
    return 128 + stopped.signal;
  } catch (const c10::Error& error) {
    log_failure(without_jargon(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    log_failure(without_jargon("out of memory"));
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string place = moesaic::without_staging(error.path1()).string();
    log_failure(fmt::format("{}: {}", place.empty() ? "a folder cannot be listed" : place,
                            error.code().message()));
  } catch (const nlohmann::json::exception& error) {
    const std::string_view what = error.what();
    log_failure(fmt::format("corrupt JSON: {}", what.substr(what.find("] ") + 2)));
  } catch (const std::exception& error) {
    log_failure(without_jargon(error.what()));
  }
  return 1;
}

/// Ends the program with a line where a thread of a library throws what nobody can catch.
[[noreturn]] void end_by_line() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    log_failure("terminated without an exception");
  } catch (const std::exception& error) {
    log_failure(without_jargon(error.what()));
  } catch (...) {
    log_failure("terminated by an exception of an unknown kind");
  }
  std::_Exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(&end_by_line);
  moesaic::tools::tune_runtime(argv);
  moesaic::tools::hold_standard_streams();
  moesaic::tools::explain_bus_errors();
  moesaic::tools::protect_terminals();
  moesaic::tools::remember_call(argv[0]);
  moesaic::tools::let_the_leader_speak();
  moesaic::tools::end_process(moesaic::tools::checked_output(run_or_explain(argc, argv)));
}
