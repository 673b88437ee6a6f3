// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moesaic/config/document.h"

namespace moesaic::tools {

/// Returns the common settings of a run, a line each, and how to ask for others.
std::string common_settings_help();

/// Returns help on what `words` name: {"phases.optimizer"}, a setting or a group of settings, or
/// {"model", "NAME"}, all settings of a family of networks. Throws Error (usage) for other words.
std::string settings_help(const std::vector<std::string>& words);

/// Returns the paths of a recipe's settings whose last part is `name`, at most three, as
/// "phases.train.optimizer.lr or ..."; "" where there are none, or `name` is a path already.
std::string settings_called(const std::string& name, const Document& recipe);

}  // namespace moesaic::tools
