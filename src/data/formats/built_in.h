// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/data/format.h"

namespace moesaic {

/// Return the built-in formats, one file each.
DatasetFormat idx_format();
DatasetFormat cifar_format();
DatasetFormat image_folder_format();
DatasetFormat celeba_format();
DatasetFormat clusters_format();
DatasetFormat embeddings_format();
DatasetFormat gated_format();
DatasetFormat latent_format();
DatasetFormat patch_patterns_format();
DatasetFormat patterns_format();
DatasetFormat shards_format();

}  // namespace moesaic
