// SPDX-License-Identifier: Apache-2.0
// The task of classifying images as original or rotated (CIFAR-10-Rotate of "Towards Understanding
// Mixture of Experts in Deep Learning", appendix A).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

struct RotateConfig {
  double degrees = 30.0;
  int64_t crop = 0;
};

template <class Fields>
void describe(Fields& f, RotateConfig& c) {
  f("degrees", c.degrees, "angle, counter-clockwise", above(0.0), below(360.0));
  f("crop", c.crop,
    "side of the square in the middle that is kept of each image, rotated or not, and resized to "
    "the whole; 0: all of it, with the black corners that tell what was rotated",
    at_least(0));
}

/// Makes a dataset with every image of `base` twice: example 2 i is image i, of class "original",
/// and 2 i + 1 the same rotated, of class "rotated". Classes of `base` become groups. Rotation
/// takes the nearest pixel, and 0 outside, as torchvision does by default; both are then cropped
/// and resized bilinearly, see RotateConfig. Images are made on the fly and share the memory of
/// `base`. Throws Error (usage) if images differ in size, are smaller than the crop or have no
/// classes.
std::shared_ptr<const Dataset> make_rotated_pairs(std::shared_ptr<const Dataset> base,
                                                  const RotateConfig& config, std::string name,
                                                  std::string description = "");

}  // namespace moesaic
