// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace moesaic {

/// Throws Error (usage) that names both where `out`, a new file or folder, lies among the images
/// that a data set is read from: it would be a class or an image the next time.
void check_outside_images(const std::filesystem::path& out, const std::string& data);

}  // namespace moesaic
