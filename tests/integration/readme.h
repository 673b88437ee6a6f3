// SPDX-License-Identifier: Apache-2.0
// README.md and the pages in docs/ quote files that tests run, and show what these printed.
#pragma once

#include <string>

namespace moesaic::testing {

/// A file of the project, by its path from the root.
std::string source_path(const std::string& name);

/// Fails the test unless the page has a block of this language with the file, from the line that
/// begins with `first` to its end.
void expect_quoted(const std::string& page, const std::string& name, const std::string& language,
                   const std::string& first);

/// Fails the test unless the page shows this output, set in by four blanks.
void expect_shown(const std::string& page, const std::string& printed);

}  // namespace moesaic::testing
