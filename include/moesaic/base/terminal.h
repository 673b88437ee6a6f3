// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

namespace moesaic {

bool is_terminal(std::FILE* file);

/// Returns whether `file` is a terminal with colour support and NO_COLOR is unset or empty.
bool wants_color(std::FILE* file);

/// Returns the number of columns of the terminal behind `file`; 80 if it is unknown.
int terminal_columns(std::FILE* file);

}  // namespace moesaic
