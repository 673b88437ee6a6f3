// SPDX-License-Identifier: Apache-2.0
// Small images on photographs (CIFAR-10 with ImageNet noise of the pMoE paper, appendix A).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/config/sides.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

struct BackdropConfig {
  std::string images;
  Sides size = 16;
  int64_t seed = 1;
};
template <class Fields>
void describe(Fields& f, BackdropConfig& c) {
  f("images", c.images,
    "the dataset whose training images are the backdrops, or a folder of images; a path may be "
    "relative to this description",
    required, not_empty);
  f("size", c.size, "size that the base's images are resized to", between(1, 4096));
  f("seed", c.seed, "which backdrops and places are drawn");
}

/// Makes a dataset with every image of `base` resized to `config.size` and put at a random place of
/// a random image of `backdrops`, of which the largest square in the middle is resized to the size
/// that the base's images have. Labels and groups are the base's. Image i depends on seed, split
/// and i only. Pixels are not standardised. Without `backdrops` images cannot be read, for
/// planning. Throws Error (usage) if images of `base` differ in size or are smaller than
/// `config.size`, and for backdrops with another number of channels.
std::shared_ptr<const Dataset> make_on_backdrops(std::shared_ptr<const Dataset> base,
                                                 std::shared_ptr<const Dataset> backdrops,
                                                 const BackdropConfig& config, std::string name,
                                                 std::string description = "");

}  // namespace moesaic
