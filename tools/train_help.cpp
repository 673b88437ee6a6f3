// SPDX-License-Identifier: Apache-2.0
#include "train_help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/text.h"
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

/// Returns the settings of every family's networks that `path` names, such as "model.encoder" or
/// "router", once where families share them; "" where none has such settings.
std::string model_help(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> texts;  // Of settings, with who has them.
  for (const auto& [name, family] : families().entries()) {
    if (!family.listed) continue;
    std::string text;
    try {
      text = help_text(rows_about(family.help(), path));
    } catch (const Error&) {
      continue;
    }
    const auto same = std::find_if(texts.begin(), texts.end(),
                                   [&](const auto& other) { return other.first == text; });
    same == texts.end() ? void(texts.emplace_back(text, name)) : void(same->second += ", " + name);
  }
  std::string all;
  constexpr size_t kColumns = 100;
  for (const auto& [text, names] : texts) {
    all += wrapped("Of a " + names + ":", kColumns, "") + "\n" + text + "\n";
  }
  return all;
}

/// Returns whether a setting of a run, or a group of them, begins with this word.
bool is_of_run(const std::string& path) {
  const std::string word = path.substr(0, path.find('.'));
  const HelpRows rows = help_rows<RunConfig>();
  return word != "model" && std::any_of(rows.begin(), rows.end(), [&](const auto& row) {
           return row.key == word || row.key.starts_with(word + ".");
         });
}

/// Returns whether a setting is there only where another one, such as the phase's kind, is not the
/// default: its meaning begins with the name of that choice.
bool is_of_a_choice(const config_detail::HelpRow& row) {
  const size_t colon = row.meaning.find(": ");
  return colon != std::string::npos &&
         row.meaning.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == colon;
}

}  // namespace

std::string settings_called(const std::string& name, const Document& recipe) {
  constexpr size_t kMost = 3;
  if (name == "model" || is_of_run(name)) return "";
  HelpRows rows = help_rows<RunConfig>();
  const Value* const model = recipe.root().find("model");
  const Value* const family = model == nullptr ? nullptr : model->find("name");
  if (family != nullptr && family->kind() == Value::Kind::string) {
    if (const Family* known = families().find(family->as_string())) {
      const HelpRows more = known->help();
      rows.insert(rows.end(), more.begin(), more.end());
    }
  }
  const Value* const phases = recipe.root().find("phases");
  std::vector<std::string> found, others;
  for (const config_detail::HelpRow& row : rows) {
    if (!row.key.ends_with("." + name)) continue;
    const bool of_phase = row.key.starts_with("phases.N.");
    if (row.key.find(".N.", of_phase ? 7 : 0) != std::string::npos) continue;
    std::string key = row.key;
    if (of_phase && phases != nullptr && phases->kind() == Value::Kind::array &&
        !phases->items().empty()) {
      const Value* const called = phases->items().back().find("name");
      const bool named = called != nullptr && called->kind() == Value::Kind::string;
      key = fmt::format("phases.{}.{}", named ? called->as_string() : "0", key.substr(9));
    }
    std::vector<std::string>& keys = is_of_a_choice(row) ? others : found;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  if (found.empty()) found = std::move(others);
  if (found.size() > kMost) found.resize(kMost);
  return fmt::format("{}", fmt::join(found, " or "));
}

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
  const bool of_run = words.front() == "model" || is_of_run(words.front());
  const std::string of_networks = of_run ? "" : model_help(words.front());
  if (words.front().starts_with("model.") && !of_networks.empty()) return of_networks;
  std::string text;
  try {
    text = with_note(rows_about(help_rows<RunConfig>(), words.front()));
  } catch (const Error& error) {
    if (of_networks.empty()) fail_usage("train --help: {}", error.what());
  }
  if (words.front() != "model") {
    return text + (text.empty() || of_networks.empty() ? "" : "\n") + of_networks;
  }
  return fmt::format("{}\nIts settings: moesaic train --help model NAME (one of {})\n", text,
                     fmt::join(families().names(), ", "));
}

}  // namespace moesaic::tools
