// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/config/document.h"
#include "moesaic/config/schema.h"

namespace moesaic::tools {

/// Returns the common settings of a run, a line each, and how to ask for others.
std::string common_settings_help();

/// Returns help on what `words` name: {"phases.optimizer"}, a setting or a group of settings, as
/// far as they are there by default; {"model", "NAME"}, all settings of a family of networks; or
/// those that one kind of phase, {"kind", "NAME"}, or one objective, {"loss", "NAME"}, has alone.
/// Throws Error (usage) for other words.
std::string settings_help(const std::vector<std::string>& words);

/// Returns the paths of a recipe's settings that help_rows_matching() finds for `name`, at most
/// three, as "phases.train.optimizer.lr or ..."; those of known phases where `name` is a setting of
/// one that the recipe lacks; "" where there are none, or `name` is a path already.
std::string settings_called(const std::string& name, const Document& recipe);

/// Returns help on descriptions of data: {"describe"}, all keys; {"describe", "KEY"}, one of them;
/// {"format", "NAME"}, what one format has alone. Throws Error (usage) for other words.
std::string description_help(const std::vector<std::string>& words);

/// Settings that one thing alone has: "run", "kind patch_sgd", "model vmoe", "experiment runs", ...
struct SettingsGroup {
  std::string of;
  HelpRows rows;
};

/// Returns all settings of runs, networks, data descriptions and experiments.
std::vector<SettingsGroup> all_settings();

}  // namespace moesaic::tools
