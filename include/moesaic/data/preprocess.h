// SPDX-License-Identifier: Apache-2.0
// How the bytes of an image become the input of a network: preprocessing, the same in training and
// in evaluation, and what a checkpoint and an export store of it.
#pragma once

#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"

namespace moesaic {

/// Max side that images are resized to.
inline constexpr double kMaxSide = 16384;

/// Settings of how images become inputs: `preprocess` of a phase.
struct PreprocessConfig {
  Size2d size = 0;
  double central_crop = 0.0;
  int64_t channels = 0;
  std::string orientation = "data";
  std::string interpolation = "bilinear";
  bool antialias = true, truncate = false;
  std::string values = "standardized";
  std::vector<double> mean, std;
};

void describe(auto& f, PreprocessConfig& c) {
  f("size", c.size,
    "size of preprocessed images, N or [height, width]; 0: unchanged or, for data that may hold "
    "images of any size, the largest size that the network takes",
    between(0, kMaxSide), common);
  f("central_crop", c.central_crop,
    "size of a central crop as a fraction of the largest crop with the aspect ratio of 'size', "
    "such as 0.875 (224 of 256); 0: no crop, the full image is resized and its aspect ratio lost",
    between(0.0, 1.0));
  f("channels", c.channels,
    "number of channels of preprocessed images, 1 (grey) or 3 (colour); 0: those of the data, or "
    "for a folder of images those of the network",
    between(0, 3));
  f("orientation", c.orientation,
    "source of an image's orientation: upright: the photo's EXIF tag, as viewers show it; stored: "
    "none; data: the dataset's exif_orientation, upright without one",
    one_of({"data", "upright", "stored"}));
  f("interpolation", c.interpolation, "interpolation method for resizing images",
    one_of({"bilinear", "bicubic"}));
  f("antialias", c.antialias, "antialiased downsampling, in which every source pixel counts");
  f("truncate", c.truncate,
    "truncation of resized bytes instead of rounding, as in google-research/vmoe; needs bilinear "
    "and antialias false");
  f("values", c.values,
    "scaling of pixel values: standardized: by the dataset's mean and std; symmetric: to [-1, 1]; "
    "unit: to [0, 1]",
    one_of({"standardized", "symmetric", "unit"}));
  f("mean", c.mean, "mean of each channel, of pixels scaled to [0, 1]; empty: the dataset's");
  f("std", c.std,
    "standard deviation of each channel, of pixels scaled to [0, 1]; empty: the dataset's",
    above(0.0));
}

/// Returns what is wrong with settings that exclude each other.
ConfigProblem config_problem(const PreprocessConfig& config);

/// Returns what is wrong with a mean and std of pixels scaled to [0, 1], e.g. that they are of
/// bytes from 0 to 255, and which of both it is.
ConfigProblem unit_problem(const std::vector<double>& mean, const std::vector<double>& std);

/// Returns `config` for a network that takes images of `input_shape`, channels, height and width,
/// which decide where config says nothing: the channels where the data leave them open, the size
/// where the data have none.
PreprocessConfig for_network(PreprocessConfig config, const DatasetInfo& data,
                             const std::vector<int64_t>& input_shape);

/// Returns `base` preprocessed: info() has the final channels, height and width, and the mean and
/// std that map bytes to config.values. image() returns the whole image or its central part,
/// resized; read_crop() resizes as `config` says. Shares the memory of `base`. Throws Error (usage)
/// if images differ in size and config.size is 0.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const PreprocessConfig& config);

/// Returns `base` with the metadata `info`: resized to info.height x info.width as `config` says,
/// in grey or colours as info.channels says, turned unless info.applies_exif is false.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base, DatasetInfo info,
                                            const PreprocessConfig& config);

/// Returns the metadata of a preprocessed dataset, with the final height and width and the mean and
/// std that map bytes to config.values.
DatasetInfo preprocessed_info(DatasetInfo info, const PreprocessConfig& config);

/// Input of a network, all that a reader needs to make it from an image's bytes: "input" in a
/// checkpoint's config.json, and preprocess.json of an export.
struct InputSpec {
  std::string dataset;     ///< Name of the training data, without folders.
  bool is_listed = true;   ///< Whether that is a name of dataset_names(), not of a path.
  bool has_images = true;  ///< False for inputs that are used as they are.
  std::vector<int64_t> input_size;
  /// Settings beside the other keys of the document, without `size`, `channels`, `mean` and `std`,
  /// which are resolved here. The orientation is "upright" or "stored"; "data" where an older
  /// version did not store it, which is as stored unless the data's own exif_orientation is true.
  PreprocessConfig preprocess;
  std::optional<double> rescale_factor;
  std::vector<double> mean, std;  ///< Empty where unknown, and for inputs that are no images.
  bool has_own_values = false;    ///< Whether mean and std are the recipe's, not the data's.
  bool takes_bytes = false;       ///< Whether an exported file takes bytes and does the rest.
  std::string channel_order;
  std::vector<std::string> classes;
};
void describe(auto& f, InputSpec& c) {
  f("dataset", c.dataset, "name of the dataset that the network was trained on");
  f("listed", c.is_listed, "name known to moesaic data list; false: the data were given as a path");
  f("images", c.has_images, "image inputs, which the other settings describe; false: other inputs",
    required);
  f("input_size", c.input_size, "shape of an input: channels, height and width", required,
    between(1, 1 << 24));
  describe(f, c.preprocess);
  f("rescale_factor", c.rescale_factor, "factor by which bytes are multiplied first");
  f("mean", c.mean, "mean of each channel, subtracted after rescaling", between(-1e30, 1e30));
  f("std", c.std, "standard deviation of each channel, divided by after subtracting the mean",
    between(1e-30, 1e30));
  f("own_values", c.has_own_values, "mean and std chosen by a recipe, instead of the data's");
  f("takes_bytes", c.takes_bytes,
    "images of bytes as the input of an exported file, which rescales and normalises them");
  f("channel_order", c.channel_order, "order of an image's channels",
    one_of({"rgb", "gray", "as stored"}));
  f("classes", c.classes, "names of the network's outputs, in order");
}
ConfigProblem config_problem(const InputSpec& spec);

/// Returns what makes the inputs of `data`, the result of preprocessed(base, config).
InputSpec input_spec(const Dataset& data, const PreprocessConfig& config);

/// Returns the channel order of images with so many channels.
std::string channel_order(int64_t channels);

/// Returns the document, where a list or number that is not known or does not apply is null.
Json document_of(const InputSpec& spec);
/// Reads such a document strictly, as untrusted. Throws Error (failure) that names `from`.
InputSpec read_input_spec(const Json& document, const std::string& from);

/// Returns `base` as the network of `spec` takes it: info() has its size, mean and std where they
/// are known. Throws Error (usage) where only one of them is of images.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const InputSpec& spec);

/// Warns in one line of what `spec`, of the checkpoint `from`, overrules in the data's own
/// description: mean, std, size of images. Classes are matched by name (data/views.h).
void warn_overridden(const InputSpec& spec, const DatasetInfo& data, const std::string& from);

}  // namespace moesaic
