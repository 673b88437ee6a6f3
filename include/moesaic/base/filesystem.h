// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace moesaic {

namespace fs = std::filesystem;

}  // namespace moesaic
