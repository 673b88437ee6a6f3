// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

namespace moesaic {

/// The folder that holds models/, datasets/ and checkpoints/: $MOESAIC_HOME when it is set (and
/// then it must exist, else Error(usage)), else ../share/moesaic beside the program's own folder
/// (an installation, wherever it was put), else the source tree that this was built from.
/// Error(failure) when none of them is there.
std::filesystem::path resource_root();

/// resource_root() / relative; need not exist.
std::filesystem::path resource(std::string_view relative);

}  // namespace moesaic
