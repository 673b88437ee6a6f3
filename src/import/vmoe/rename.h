// SPDX-License-Identifier: Apache-2.0
// How rules that map names rewrite them, for every project whose checkpoints are imported.
#pragma once

#include <string>

#include "moesaic/base/pattern.h"

namespace moesaic {

/// Returns the name with every match of the pattern replaced, in Python's notation: \1 and \g<1>
/// are groups, \\ is a backslash.
std::string renamed(const Pattern& pattern, const std::string& replacement,
                    const std::string& name);

}  // namespace moesaic
