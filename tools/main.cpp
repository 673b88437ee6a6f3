// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "runtime.h"
#include "verbs.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"moesaic: train, prune and ship mixture-of-experts networks for vision", "moesaic"};
  app.require_subcommand(1);
  app.set_version_flag("--version", MOESAIC_VERSION);
  app.failure_message([](const CLI::App* root, const CLI::Error& error) {
    std::string command = "moesaic";
    for (const CLI::App* verb = root; !verb->get_subcommands().empty();) {
      verb = verb->get_subcommands().front();
      command += " " + verb->get_name();
    }
    return "moesaic: " + std::string(error.what()) + " (see " + command + " --help)\n";
  });
  int exit_code = 0;
  namespace tools = moesaic::tools;
  for (const auto add : {tools::add_train, tools::add_eval, tools::add_predict, tools::add_prune,
                         tools::add_export, tools::add_inspect, tools::add_data, tools::add_list,
                         tools::add_reproduce, tools::add_bench, tools::add_doctor}) {
    add(app, exit_code);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  moesaic::tools::tune_runtime(argv);
  try {
    return run(argc, argv);
  } catch (const moesaic::Error& error) {
    moesaic::log_error("{}", error.what());
    return error.exit_code();
  } catch (const c10::Error& error) {
    moesaic::log_error("{}", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    moesaic::log_error("{}", error.what());
    return 1;
  }
}
