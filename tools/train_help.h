// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moesaic::tools {

/// Returns the common settings of a run, a line each, and how to ask for others.
std::string common_settings_help();

/// Returns help on what `words` name: {"phases.optimizer"}, a setting or a group of settings, or
/// {"model", "NAME"}, all settings of a family of networks. Throws Error (usage) for other words.
std::string settings_help(const std::vector<std::string>& words);

}  // namespace moesaic::tools
