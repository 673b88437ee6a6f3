// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "moesaic/data/format.h"

namespace moesaic {

/// The formats that moesaic brings, a file each.
DatasetFormat idx_format();
DatasetFormat cifar_format();
DatasetFormat image_folder_format();
DatasetFormat celeba_format();
/// The settings of a folder of images without a description, by the folders in it.
Choice image_folder_settings(const std::filesystem::path& folder);
DatasetFormat clusters_format();
DatasetFormat embeddings_format();

}  // namespace moesaic
