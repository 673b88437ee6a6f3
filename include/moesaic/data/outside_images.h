// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace moesaic {

/// Throws Error (usage) that names both where `out`, a new file or folder, lies among the images
/// that a data set is read from: it would be a class or an image the next time.
void check_outside_images(const std::filesystem::path& out, const std::string& data);

/// Throws likewise for the data that a checkpoint's configuration says it was trained on.
void check_outside_trained_images(const std::filesystem::path& out,
                                  const nlohmann::ordered_json& config);

}  // namespace moesaic
