// SPDX-License-Identifier: Apache-2.0
#include "train_help.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "moesaic/base/error.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/data/format.h"
#include "moesaic/data/source.h"
#include "moesaic/models/family.h"
#include "moesaic/report/experiment.h"
#include "moesaic/report/runs.h"
#include "moesaic/train/objective.h"
#include "moesaic/train/phase.h"
#include "moesaic/train/run_config.h"

namespace moesaic::tools {
namespace {

constexpr size_t kColumns = 100;
constexpr const char* kItems =
    "\nN is the index of an item (from 0), or its name where it has one.\n";

std::string with_note(const HelpRows& rows) {
  const std::string text = help_text(rows);
  return text.find(".N.") == std::string::npos ? text : text + kItems;
}

/// Returns the settings of every family's networks that `path` names, such as "model.encoder" or
/// "router", once where families share them; "" where none has such settings.
std::string model_help(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> texts;  // Of settings, with who has them.
  for (const auto& [name, family] : families().entries()) {
    if (!family.is_listed) continue;
    std::string text;
    try {
      text = help_text(help_rows_at(family.help(), path));
    } catch (const Error&) {
      continue;
    }
    const auto same = std::ranges::find(texts, text, &std::pair<std::string, std::string>::first);
    same == texts.end() ? void(texts.emplace_back(text, name)) : void(same->second += ", " + name);
  }
  std::string all;
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

using Names = std::vector<std::string>;

/// Settings that decide which others there are, with the values that they may have.
using Choices = std::vector<std::pair<std::string, Names>>;

Choices choices_of_runs() {
  return {{"kind", phase_kinds().names()}, {"loss", objectives().names()}};
}

Choices choices_of_descriptions() {
  return {{"format", dataset_formats().names()}};
}

/// A value of a choice, such as {"kind", "patch_sgd"}; empty for the default one.
using Alternative = std::pair<std::string, std::string>;

/// Returns the alternative that alone has this setting: its meaning begins with the name.
Alternative owner_of(const config_detail::HelpRow& row, const Choices& choices) {
  const std::string name = row.description.substr(0, row.description.find(": "));
  for (const auto& [choice, names] : choices) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return {choice, name};
  }
  return {};
}

HelpRows rows_of(const HelpRows& rows, const Choices& choices, const Alternative& owner) {
  HelpRows own;
  for (config_detail::HelpRow row : rows) {
    if (owner_of(row, choices) != owner) continue;
    if (!owner.second.empty()) row.description.erase(0, owner.second.size() + 2);
    own.push_back(std::move(row));
  }
  return own;
}

/// Returns the help of the rows that are there by default, and how to ask for the others of them;
/// where all are of other alternatives, their help.
std::string help_by_default(const HelpRows& rows, const Choices& choices,
                            const std::string& command) {
  const HelpRows own = rows_of(rows, choices, {});
  if (own.empty()) return with_note(rows);
  std::map<std::string, std::set<std::string>> others;
  for (const config_detail::HelpRow& row : rows) {
    const auto [choice, name] = owner_of(row, choices);
    if (!name.empty()) others[choice].insert(name);
  }
  std::string text = with_note(own);
  for (const auto& [choice, names] : others) {
    text += "\n" +
            wrapped(fmt::format("With another {0}: {1} --help {0} NAME, which is one of {2}",
                                choice, command, fmt::join(names, ", ")),
                    kColumns, "  ") +
            "\n";
  }
  return text;
}

/// Returns the help of the settings that only this value of a choice has.
std::string help_of(const Alternative& owner, const HelpRows& rows, const Choices& choices,
                    const std::string& command, const std::string& common) {
  const Names& names = std::ranges::find(choices, owner.first, &Choices::value_type::first)->second;
  if (std::find(names.begin(), names.end(), owner.second) == names.end()) {
    fail_usage("{} --help {}: unknown '{}'; {}", command, owner.first, one_line(owner.second),
               did_you_mean(owner.second, names));
  }
  const HelpRows own = rows_of(rows, choices, owner);
  if (!own.empty()) return with_note(own);
  return fmt::format("{} has no settings but those of: moesaic {} --help {}\n", owner.second,
                     command, common);
}

/// Returns the help of a member that objects take besides their settings, "" for another word.
std::string member_help(const std::string& path) {
  const std::string word = path.substr(path.rfind('.') + 1);
  if (word == "preset") {
    return "preset, in \"model\": name of a network (moesaic list models), whose settings the "
           "other members override\n";
  }
  if (word == "extends") {
    return "extends, in any object: JSON file over which the object's other members are merged\n";
  }
  return "";
}

/// Returns what is meant by a kind of `moesaic list` where a setting is asked for, "" for another
/// word.
std::string listed_kind_hint(const std::string& word) {
  struct Meant {
    std::string one, kind, key;  ///< The key is "" where no setting has such values.
  };
  static const std::vector<Meant> kinds = {
      {"criterion", "criteria", "phases.N.on_entry.prune.criterion"},
      {"dataset", "datasets", "phases.N.data"},
      {"experiment", "experiments", ""},
      {"family", "models", "model.name"},
      {"format", "formats", ""},
      {"objective", "objectives", "phases.N.loss"},
      {"probe", "probes", ""},
      {"recipe", "recipes", ""}};
  const auto found = std::ranges::find_if(
      kinds, [&](const Meant& meant) { return word == meant.one || word == meant.kind; });
  if (found == kinds.end()) return "";
  if (found->key.empty()) {
    return fmt::format("no setting of a run has such values; moesaic list {} lists them",
                       found->kind);
  }
  return fmt::format("did you mean '{}', with the values of moesaic list {}?", found->key,
                     found->kind);
}

bool is_choice(const std::string& word, const Choices& choices) {
  return std::ranges::count(choices, word, &Choices::value_type::first) > 0;
}

/// Returns the names of a recipe's phases.
Names phase_names(const Document& recipe) {
  Names names;
  const Value* const phases = recipe.root().find("phases");
  if (phases == nullptr || phases->kind() != Value::Kind::array) return names;
  for (const Value& phase : phases->items()) {
    const Value* const name = phase.find("name");
    if (name != nullptr && name->kind() == Value::Kind::string) names.push_back(name->as_string());
  }
  return names;
}

/// Returns what is meant by a path "phases.NAME.SETTING" where no phase has this name: the setting
/// of the phase with the nearest name, or else of each. Nothing where NAME is a setting itself,
/// before which the name is missing.
Names settings_of_known_phases(const std::string& path, const Document& recipe) {
  const Names parts = split(path, '.'), names = phase_names(recipe);
  const bool number =
      parts.size() < 2 || parts[1].find_first_not_of("-0123456789") == Names::value_type::npos;
  if (parts.size() < 3 || parts[0] != "phases" || number || std::ranges::count(names, parts[1])) {
    return {};
  }
  const HelpRows rows = help_rows<RunConfig>();
  const auto is_setting = [&](const std::string& part) {
    const std::string key = "phases.N." + part;
    return std::ranges::any_of(
        rows, [&](const auto& row) { return row.key == key || row.key.starts_with(key + "."); });
  };
  if (is_setting(parts[1]) || !is_setting(parts[2])) return {};
  const auto near = nearest(parts[1], names);
  Names meant;
  for (const std::string& name : near ? Names{*near} : names) {
    meant.push_back(
        fmt::format("phases.{}.{}", name, fmt::join(parts.begin() + 2, parts.end(), ".")));
  }
  return meant;
}

}  // namespace

std::string settings_called(const std::string& name, const Document& recipe) {
  constexpr size_t kMost = 3;
  if (Names meant = settings_of_known_phases(name, recipe); !meant.empty()) {
    if (meant.size() > kMost) meant.resize(kMost);
    return fmt::format("{}", fmt::join(meant, " or "));
  }
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
  const Names phases = phase_names(recipe);
  const Choices choices = choices_of_runs();
  std::vector<std::string> found, others;
  for (const config_detail::HelpRow& row : help_rows_matching(rows, name)) {
    const bool of_phase = row.key.starts_with("phases.N.");
    if (row.key.find(".N.", of_phase ? 7 : 0) != std::string::npos) continue;
    std::string key = row.key;
    if (of_phase) {
      key = fmt::format("phases.{}.{}", phases.empty() ? "0" : phases.front(), key.substr(9));
    }
    const bool is_default = owner_of(row, choices).second.empty();
    std::vector<std::string>& keys = is_default ? found : others;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  if (found.empty()) found = std::move(others);
  if (found.size() > kMost) found.resize(kMost);
  return fmt::format("{}", fmt::join(found, " or "));
}

std::string common_settings_help() {
  return fmt::format(
      "Common settings, with their defaults (N: a phase's index, from 0, or its name):\n"
      "{}\n"
      "All settings: moesaic train --help KEY.PATH, e.g. phases.optimizer, or --help model NAME\n",
      common_help(rows_of(help_rows<RunConfig>(), choices_of_runs(), {})));
}

std::string settings_help(const std::vector<std::string>& words) {
  if (words.front() == "model" && words.size() == 2) {
    const std::string name = words[1].substr(0, words[1].find('/'));  // A preset has its family's.
    return with_note(families().at(name, "train --help model").help());
  }
  const Choices choices = choices_of_runs();
  if (words.size() == 2 && is_choice(words[0], choices)) {
    return help_of({words[0], words[1]}, help_rows<RunConfig>(), choices, "train", "phases");
  }
  if (words.size() != 1) {
    fail_usage("train --help: expected KEY.PATH, or model, kind or loss and NAME, found '{}'",
               fmt::join(words, " "));
  }
  const bool of_run = words.front() == "model" || is_of_run(words.front());
  const std::string of_networks = of_run ? "" : model_help(words.front());
  if (words.front().starts_with("model.") && !of_networks.empty()) return of_networks;
  std::string text;
  try {
    text = help_by_default(help_rows_at(help_rows<RunConfig>(), words.front()), choices,
                           "moesaic train");
  } catch (const Error& error) {
    if (!of_networks.empty()) return of_networks;
    if (std::string member = member_help(words.front()); !member.empty()) return member;
    const std::string hint = listed_kind_hint(words.front());
    if (hint.empty()) fail_usage("train --help: {}", error.what());
    fail_usage("train --help: unknown key '{}'; {}", one_line(words.front()), hint);
  }
  if (words.front() != "model") {
    return text + (text.empty() || of_networks.empty() ? "" : "\n") + of_networks;
  }
  return fmt::format("{}\nIts settings: moesaic train --help model NAME (one of {})\n", text,
                     fmt::join(families().names(), ", "));
}

std::string description_help(const std::vector<std::string>& words) {
  const Choices choices = choices_of_descriptions();
  const HelpRows rows = help_rows<DatasetSpec>();
  if (words.size() == 2 && is_choice(words[0], choices)) {
    return help_of({words[0], words[1]}, rows, choices, "data", "describe");
  }
  if (words.empty() || words.size() > 2 || words[0] != "describe") {
    fail_usage(
        "data --help: expected describe, describe KEY or format NAME (moesaic list formats), found "
        "'{}'",
        fmt::join(words, " "));
  }
  try {
    return help_by_default(words.size() == 1 ? rows : help_rows_at(rows, words[1]), choices,
                           "moesaic data");
  } catch (const Error& error) {
    fail_usage("data --help describe: {}", error.what());
  }
}

std::vector<SettingsGroup> all_settings() {
  std::vector<SettingsGroup> groups;
  const auto add = [&](const std::string& of, const HelpRows& rows, const Choices& choices) {
    groups.push_back({of, rows_of(rows, choices, {})});
    for (const auto& [choice, names] : choices) {
      for (const std::string& name : names) {
        HelpRows own = rows_of(rows, choices, {choice, name});
        if (!own.empty()) groups.push_back({choice + " " + name, std::move(own)});
      }
    }
  };
  add("run", help_rows<RunConfig>(), choices_of_runs());
  for (const auto& [name, family] : families().entries()) {
    if (family.is_listed) add("model " + name, family.help(), {});
  }
  add("description", help_rows<DatasetSpec>(), choices_of_descriptions());
  add("experiment runs", help_rows<RunsConfig>(), {});
  add("experiment image_grid", help_rows<ImageGridConfig>(), {});
  return groups;
}

}  // namespace moesaic::tools
