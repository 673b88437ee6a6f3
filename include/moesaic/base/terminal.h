// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

namespace moesaic {

bool is_terminal(std::FILE* file);

/// A terminal that understands colours, and NO_COLOR is unset or empty.
bool wants_color(std::FILE* file);

/// Columns of the terminal behind `file`; 80 when it does not say.
int terminal_columns(std::FILE* file);

}  // namespace moesaic
