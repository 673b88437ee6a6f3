// SPDX-License-Identifier: Apache-2.0
// Images that are a grid of another dataset's images, one of which decides the class (pMoE paper,
// section 5.1: 16 digits of MNIST).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/config/sides.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

struct MosaicConfig {
  std::vector<std::string> deciding, others;
  Sides grid = 4;
  std::optional<Sides> tile;
  int64_t train = 1000, test = 1000, seed = 1;
  bool replacement = true;
};
template <class Fields>
void describe(Fields& f, MosaicConfig& c) {
  f("deciding", c.deciding, "classes of the base, one image of which decides: the new classes",
    required, not_empty);
  f("others", c.others, "classes of the images that do not decide; none named: all that are left");
  f("grid", c.grid, "images in a column and a row", between(1, 256));
  f("tile", c.tile,
    "size that images are resized to for their place; by default they stay as they are",
    between(1, 4096));
  f("train", c.train, "images of an epoch; there is no end of them", at_least(1));
  f("test", c.test, "images of every other split", at_least(1));
  f("seed", c.seed, "which images are drawn");
  f("replacement", c.replacement,
    "draw the deciding images with replacement; false: every one of a class before any comes "
    "again");
}

/// Whether the base has images, or is only an outline of them, for planning.
enum class MosaicOf { images, outline };

/// Makes a dataset of images drawn from those of `base`: image i is of class i modulo the number of
/// classes, one image of which is at a random place of the grid; at every other place is a random
/// image of one of the other classes. The split "train" is endless. Image i depends on seed, split
/// and i only; without replacement the deciding images of a class are those of a permutation, over
/// and over. Its group is the place of the deciding image, row by row. Pixels are not standardised,
/// so that what is black is 0. Throws Error: usage for a class that `base` lacks or that both
/// decides and does not, and for images of different sizes without `tile`; failure where `base` has
/// no image of a class.
std::shared_ptr<const Dataset> make_mosaic(std::shared_ptr<const Dataset> base,
                                           const MosaicConfig& config, MosaicOf of,
                                           std::string name, std::string description = "");

}  // namespace moesaic
