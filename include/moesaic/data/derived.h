// SPDX-License-Identifier: Apache-2.0
// Images that are made of those of another dataset: rotated, in grids, on backdrops.
#pragma once

#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// CIFAR-10-Rotate of "Towards Understanding Mixture of Experts in Deep Learning", appendix A.
struct RotateConfig {
  double degrees = 30.0;
  int64_t crop = 0;
  bool joint = false;
};

void describe(auto& f, RotateConfig& c) {
  f("degrees", c.degrees, "rotation angle in degrees, counter-clockwise", above(0.0), below(360.0));
  f("crop", c.crop,
    "side of the central square cut from every image, rotated or not, and resized to full size; 0: "
    "no crop, so that black corners show which images were rotated",
    at_least(0));
  f("joint", c.joint,
    "joint labels of an image's class and its rotation ('cat', 'cat rotated'); false: of its "
    "rotation alone");
}

/// Makes a dataset with every image of `base` twice: example 2 i is image i, of class "original",
/// and 2 i + 1 the same rotated, of class "rotated"; with joint labels, of class "<class>" and
/// "<class> rotated" (Lee et al., arXiv:1910.05872). Classes of `base` become groups. Rotation
/// takes the nearest pixel, and 0 outside, as torchvision does by default; both are then cropped
/// and resized bilinearly, see RotateConfig. Images are made on the fly and share the memory of
/// `base`. Throws Error (usage) if images differ in size, are smaller than the crop or have no
/// classes.
std::shared_ptr<const Dataset> make_rotated_pairs(std::shared_ptr<const Dataset> base,
                                                  const RotateConfig& config, std::string name,
                                                  std::string description = "");

/// A grid of images, one of which decides the class (pMoE paper, section 5.1: 16 digits of MNIST).
struct MosaicConfig {
  std::vector<std::string> deciding, others;
  Size2d grid = 4;
  std::optional<Size2d> tile;
  int64_t num_train = 1000, num_test = 1000, seed = 1;
  bool replacement = true;
};
void describe(auto& f, MosaicConfig& c) {
  f("deciding", c.deciding,
    "classes of the base that are the new classes: one image of one of them decides the label",
    required, not_empty);
  f("others", c.others, "classes of the images that do not decide; empty: all other classes");
  f("grid", c.grid, "images per row and per column of a mosaic", between(1, 256));
  f("tile", c.tile,
    "size in pixels that images are resized to for their tile; null: their own size",
    between(1, 4096));
  f("num_train", c.num_train, "number of images in an epoch of the endless training split",
    at_least(1), renamed_from("train"));
  f("num_test", c.num_test, "number of images in every other split", at_least(1),
    renamed_from("test"));
  f("seed", c.seed, "seed of the random choice of images");
  f("replacement", c.replacement,
    "sampling of the deciding images with replacement; false: every image of a class before any "
    "repeats");
}

/// Whether the base has images, or only their metadata, for planning.
enum class MosaicContent { images, metadata };

/// Makes a dataset of images drawn from those of `base`: image i is of class i modulo the number of
/// classes, one image of which is at a random place of the grid; at every other place is a random
/// image of one of the other classes. The split "train" is endless. Image i depends on seed, split
/// and i only; without replacement the deciding images of a class are those of a permutation, over
/// and over. The group of a mosaic is the place of the deciding image, row by row. Pixels are not
/// standardised, so that what is black is 0. Throws Error: usage for a class that `base` lacks or
/// that both decides and does not, and for images of different sizes without `tile`; failure where
/// `base` has no image of a class.
std::shared_ptr<const Dataset> make_mosaic(std::shared_ptr<const Dataset> base,
                                           const MosaicConfig& config, MosaicContent content,
                                           std::string name, std::string description = "");

/// Small images on photographs (CIFAR-10 with ImageNet noise of the pMoE paper, appendix A).
struct BackdropConfig {
  std::string images;
  Size2d size = 16;
  int64_t seed = 1;
};
void describe(auto& f, BackdropConfig& c) {
  f("images", c.images,
    "dataset whose training images are the backdrops, or a folder of images; a path may be "
    "relative to this description",
    required, not_empty);
  f("size", c.size, "size in pixels that the base's images are resized to", between(1, 4096));
  f("seed", c.seed, "seed of the random choice of backdrops and positions");
}

/// Makes a dataset with every image of `base` resized to `config.size` and put at a random place of
/// a random image of `backdrops`. The largest central square of a backdrop is resized to the size
/// of the base's images. Labels and groups are the base's. Image i depends on seed, split and i
/// only. Pixels are not standardised. Without `backdrops` images cannot be read, for planning.
/// Throws Error (usage) if images of `base` differ in size or are smaller than `config.size`, and
/// for backdrops with another number of channels.
std::shared_ptr<const Dataset> make_on_backdrops(std::shared_ptr<const Dataset> base,
                                                 std::shared_ptr<const Dataset> backdrops,
                                                 const BackdropConfig& config, std::string name,
                                                 std::string description = "");

}  // namespace moesaic
