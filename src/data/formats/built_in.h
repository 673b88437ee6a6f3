// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moesaic/data/format.h"

namespace moesaic {

/// Return the built-in formats, one file each.
DatasetFormat idx_format();
DatasetFormat cifar_format();
DatasetFormat image_folder_format();
DatasetFormat celeba_format();
DatasetFormat embeddings_format();
DatasetFormat shards_format();

}  // namespace moesaic
