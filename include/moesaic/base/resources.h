// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>

namespace moesaic {

/// Returns the directory that holds models/, datasets/ and checkpoints/: $MOESAIC_HOME if it is
/// set, else ../share/moesaic relative to the program's directory (any installation prefix), else
/// the source tree of this build. Throws Error (usage) if $MOESAIC_HOME does not exist, Error
/// (failure) if none is found.
std::filesystem::path resource_root();

/// Returns resource_root() / relative, which need not exist.
std::filesystem::path resource(std::string_view relative);

}  // namespace moesaic
