// SPDX-License-Identifier: Apache-2.0
// Image files outside a described dataset, e.g. those to predict.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "moesaic/data/dataset.h"
#include "moesaic/data/image_walk.h"

namespace moesaic {

/// Makes a dataset of files without labels, of any sizes, read on demand: image() and part() throw
/// ImageError for one that is damaged, and at once IoError for one that is not there. `info` has
/// classes, channels (3, or 1 for grey), mean and std, and whether images are turned as EXIF says.
std::shared_ptr<const Dataset> make_image_dataset(DatasetInfo info,
                                                  const std::vector<std::filesystem::path>& files);

}  // namespace moesaic
