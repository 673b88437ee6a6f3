// SPDX-License-Identifier: Apache-2.0
// Preprocessing of images, the same in training and in evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/config/sides.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Max side that images are resized to.
inline constexpr double kMaxSide = 16384;

struct PreprocessConfig {
  Sides size = 0;
  double central_crop = 0.0;
  int64_t channels = 0;
  std::string orientation = "data";
  std::string interpolation = "bilinear";
  bool antialias = true, truncate = false;
  std::string values = "standardized";
  std::vector<double> mean, std;
};

template <class Fields>
void describe(Fields& f, PreprocessConfig& c) {
  f("size", c.size,
    "what images are brought to, one number or [height, width]; 0: they stay as they are or, in "
    "data that may hold images of any size, become as large as the network takes them",
    between(0, kMaxSide), common);
  f("central_crop", c.central_crop,
    "fraction of the shorter side that a square in the middle keeps, e.g. 0.875 (224 of 256), for "
    "two sizes the largest part of their ratio; 0: the whole image, its sides' ratio lost",
    between(0.0, 1.0));
  f("channels", c.channels,
    "1: images become grey, 3: colours; 0: as the data are, of a folder as the network takes them",
    between(0, 3));
  f("orientation", c.orientation,
    "upright: photos are turned as their EXIF says, as viewers show them; stored: they are not; "
    "data: as the data's exif_orientation says, upright without one",
    one_of({"data", "upright", "stored"}));
  f("interpolation", c.interpolation, "how images are resized", one_of({"bilinear", "bicubic"}));
  f("antialias", c.antialias, "let every pixel count where an image is made smaller");
  f("truncate", c.truncate,
    "drop the fractions of resized bytes, as google-research/vmoe does, instead of rounding; needs "
    "bilinear and antialias false");
  f("values", c.values,
    "standardized: by the dataset's mean and std; symmetric: from -1 to 1; unit: from 0 to 1",
    one_of({"standardized", "symmetric", "unit"}));
  f("mean", c.mean, "of each channel, pixels scaled to [0, 1], in place of the dataset's");
  f("std", c.std, "of each channel, pixels scaled to [0, 1], in place of the dataset's",
    above(0.0));
}

/// Returns what is wrong with settings that exclude each other, "" if nothing is.
std::string config_problem(const PreprocessConfig& config);

/// Returns what is wrong with a mean and std of pixels scaled to [0, 1], e.g. that they are of
/// bytes from 0 to 255, "" if nothing is.
std::string unit_problem(const std::vector<double>& mean, const std::vector<double>& std);

/// Returns `config` for a network that takes images of `input_shape`, channels, height and width,
/// which decide where config says nothing: the channels where the data leave them open, the size
/// where the data have none.
PreprocessConfig for_network(PreprocessConfig config, const DatasetInfo& data,
                             const std::vector<int64_t>& input_shape);

/// Returns `base` preprocessed: info() has the final channels, height and width, and the mean and
/// std that map bytes to config.values. image() returns the whole image or its central part,
/// resized; part() resizes as `config` says. Shares the memory of `base`. Throws Error (usage) if
/// images differ in size and config.size is 0.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const PreprocessConfig& config);

/// Returns `base` with the metadata `info`: resized to info.height x info.width as `config` says,
/// in grey or colours as info.channels says, turned unless info.upright is false.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base, DatasetInfo info,
                                            const PreprocessConfig& config);

/// Returns how images are resized.
ResizeOptions resize_options(const PreprocessConfig& config);

/// Returns the metadata of a preprocessed dataset, with the final height and width and the mean and
/// std that map bytes to config.values.
DatasetInfo preprocessed_info(DatasetInfo info, const PreprocessConfig& config);

/// Returns the part of an image that is kept: the whole image, or with `central_crop` > 0 that
/// fraction of the largest central part whose sides have the ratio of `shape`.
Rectangle central_part(int64_t height, int64_t width, double central_crop, Sides shape = 1);

}  // namespace moesaic
