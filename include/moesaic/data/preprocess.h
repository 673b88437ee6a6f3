// SPDX-License-Identifier: Apache-2.0
// Preprocessing of images, the same in training and in evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Max side that images are resized to.
inline constexpr double kMaxSide = 16384;

struct PreprocessConfig {
  int64_t size = 0;
  double central_crop = 0.0;
  std::string interpolation = "bilinear";
  bool antialias = true, truncate = false;
  std::string values = "standardized";
  std::vector<double> mean, std;
};

template <class Fields>
void describe(Fields& f, PreprocessConfig& c) {
  f("size", c.size,
    "height and width that images are brought to; 0: they stay as they are or, in data that may "
    "hold images of any size, become those of the network",
    between(0, kMaxSide), common);
  f("central_crop", c.central_crop,
    "fraction of the shorter side that a square in the middle keeps, e.g. 0.875 (224 of 256); "
    "0: the whole image, its sides' ratio lost",
    between(0.0, 1.0));
  f("interpolation", c.interpolation, "how images are resized", one_of({"bilinear", "bicubic"}));
  f("antialias", c.antialias, "let every pixel count where an image is made smaller");
  f("truncate", c.truncate,
    "drop the fractions of resized bytes, as google-research/vmoe does, instead of rounding; needs "
    "bilinear and antialias false");
  f("values", c.values,
    "standardized: by the dataset's mean and std; symmetric: from -1 to 1; unit: from 0 to 1",
    one_of({"standardized", "symmetric", "unit"}));
  f("mean", c.mean, "of each channel, pixels scaled to [0, 1], in place of the dataset's");
  f("std", c.std, "of each channel, in place of the dataset's", above(0.0));
}

/// Returns what is wrong with settings that exclude each other, "" if nothing is.
std::string config_problem(const PreprocessConfig& config);

/// Returns `base` preprocessed: info() has the final height and width, and the mean and std that
/// map bytes to config.values. image() returns the whole image or its central square, resized;
/// part() resizes as `config` says. Shares the memory of `base`. Throws Error (usage) if images
/// differ in size and config.size is 0.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const PreprocessConfig& config);

/// Returns `base` resized to info.height x info.width as `config` says, with the metadata `info`.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base, DatasetInfo info,
                                            const PreprocessConfig& config);

/// Returns how images are resized.
ResizeOptions resize_options(const PreprocessConfig& config);

/// Returns the metadata of a preprocessed dataset, with the final height and width and the mean and
/// std that map bytes to config.values.
DatasetInfo preprocessed_info(DatasetInfo info, const PreprocessConfig& config);

/// Returns the part of an image that is kept: the whole image, or with `central_crop` > 0 its
/// central square.
Rectangle central_part(int64_t height, int64_t width, double central_crop);

}  // namespace moesaic
