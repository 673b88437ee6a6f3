// SPDX-License-Identifier: Apache-2.0
// How the bytes of an image become the input of a network.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/config/schema.h"
#include "moesaic/data/preprocess.h"

namespace moesaic {

/// The same document is "input" in a checkpoint's config.json and preprocess.json of an export:
/// all that a reader needs to make the input from an image's bytes.
struct InputSpec {
  std::string dataset;  ///< Name of the training data, without folders.
  bool listed = true;   ///< Whether that is a name of dataset_names(), not of a path.
  bool images = true;   ///< False for inputs that are used as they are.
  std::vector<int64_t> input_size;
  /// Among the other keys, without `size`, `channels`, `mean` and `std`, which are resolved here.
  /// The orientation is "upright" or "stored"; "data" where an older version did not store it,
  /// which is as stored unless the data's own exif_orientation is true.
  PreprocessConfig preprocess;
  std::optional<double> rescale_factor;
  std::vector<double> mean, std;  ///< Empty where unknown, and for inputs that are no images.
  bool own_values = false;        ///< Whether mean and std are the recipe's, not the data's.
  std::string channel_order;
  std::vector<std::string> classes;
};
template <class Fields>
void describe(Fields& f, InputSpec& c) {
  f("dataset", c.dataset, "name of the data that the network was trained on");
  f("listed", c.listed, "whether moesaic data list has that name; false: it was given as a path");
  f("images", c.images, "whether inputs are images, which the other settings are for", required);
  f("input_size", c.input_size, "channels, height and width of an input", required,
    between(1, 1 << 24));
  describe(f, c.preprocess);
  f("rescale_factor", c.rescale_factor, "what bytes are multiplied by first");
  f("mean", c.mean, "then subtracted, of each channel", between(-1e30, 1e30));
  f("std", c.std, "then divided by, of each channel", between(1e-30, 1e30));
  f("own_values", c.own_values, "whether a recipe chose them in place of the data's");
  f("channel_order", c.channel_order, "what the channels of an image are",
    one_of({"rgb", "gray", "as stored"}));
  f("classes", c.classes, "names of the network's outputs, in order");
}
ConfigProblem config_problem(const InputSpec& spec);

/// Returns what makes the inputs of `data`, the result of preprocessed(base, config).
InputSpec input_spec(const Dataset& data, const PreprocessConfig& config);

/// Returns the channel order of images with so many channels.
std::string channel_order(int64_t channels);

/// Returns the document, where a list or number that is not known or does not apply is null.
nlohmann::ordered_json document_of(const InputSpec& spec);
/// Reads such a document strictly: a stranger may have written it. Throws Error (failure) that
/// names `from`.
InputSpec read_input_spec(const nlohmann::ordered_json& document, const std::string& from);

/// Returns `base` as the network of `spec` takes it: info() has its size, mean and std where they
/// are known. Throws Error (usage) where only one of them is of images.
std::shared_ptr<const Dataset> preprocessed(std::shared_ptr<const Dataset> base,
                                            const InputSpec& spec);

/// Warns in one line of what `spec`, of the checkpoint `from`, overrules in the data's own
/// description: mean, std, size of images. Classes are matched by name (data/class_names.h).
void warn_of_overruled(const InputSpec& spec, const DatasetInfo& data, const std::string& from);

}  // namespace moesaic
