// SPDX-License-Identifier: Apache-2.0
#include "train_help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moesaic/base/error.h"
#include "moesaic/config/schema.h"
#include "moesaic/models/family.h"
#include "moesaic/train/run_config.h"

namespace moesaic::tools {
namespace {

constexpr const char* kItems = "\nN is the number of an item, or its name where it has one.\n";

std::string with_note(const HelpRows& rows) {
  const std::string text = help_text(rows);
  return text.find(".N.") == std::string::npos ? text : text + kItems;
}

/// Returns the settings of every family's networks below a path such as "model.encoder".
std::string model_help(const std::string& path) {
  std::string text, problem;
  for (const auto& [name, family] : families().entries()) {
    if (!family.listed) continue;
    try {
      text += fmt::format("Of a {}:\n{}\n", name, help_text(rows_about(family.help(), path)));
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  if (text.empty()) fail_usage("train --help: {}", problem);
  return text;
}

}  // namespace

std::string common_settings_help() {
  return fmt::format(
      "Common settings, with their defaults (N: a phase's number or name):\n{}\n"
      "All of a setting or a group: moesaic train --help KEY.PATH, e.g. phases.optimizer\n"
      "Settings of a network: moesaic train --help model NAME, which is one of\n  {}\n",
      common_help(help_rows<RunConfig>()), fmt::join(families().names(), ", "));
}

std::string settings_help(const std::vector<std::string>& words) {
  if (words.front() == "model" && words.size() == 2) {
    const std::string name = words[1].substr(0, words[1].find('/'));  // A preset has its family's.
    return with_note(families().at(name, "train --help model").help());
  }
  if (words.size() != 1) {
    fail_usage("train --help: expected KEY.PATH or model NAME, found '{}'", fmt::join(words, " "));
  }
  if (words.front().starts_with("model.")) return model_help(words.front());
  std::string text;
  try {
    text = with_note(rows_about(help_rows<RunConfig>(), words.front()));
  } catch (const Error& error) {
    fail_usage("train --help: {}", error.what());
  }
  if (words.front() != "model") return text;
  return fmt::format("{}\nIts settings: moesaic train --help model NAME (one of {})\n", text,
                     fmt::join(families().names(), ", "));
}

}  // namespace moesaic::tools
