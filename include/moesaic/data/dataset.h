// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "moesaic/base/error.h"
#include "moesaic/base/filesystem.h"
#include "moesaic/data/resize.h"

namespace moesaic {

/// An image that cannot be read; the message names its file. Others of the dataset may be sound.
class ImageError : public Error {
 public:
  /// `logged`: a warning has named it already, e.g. for all images of a damaged shard at once.
  explicit ImageError(const std::string& message, bool is_logged = false)
      : Error(ErrorKind::failure, message), is_logged_(is_logged) {}
  /// Returns whether a warning has named the image already.
  bool is_logged() const noexcept { return is_logged_; }

 private:
  bool is_logged_;
};

/// An image file as it is stored.
struct EncodedImage {
  std::string bytes;          ///< JPEG, PNG or WebP.
  bool applies_exif = false;  ///< Whether decoding turns it as EXIF says.
  std::string name;           ///< Path of the file, for messages.
};

/// Where an image is stored; reads nothing of it.
struct ImageFile {
  std::string name;    ///< Path relative to the folder or the shards of its split.
  int64_t bytes = -1;  ///< Size in bytes; -1 where unknown.
  /// Device and inode of the file; 0 for an image without a file of its own.
  uint64_t device = 0, inode = 0;
};

/// N inputs that are not images, with their targets: labels where these are classes, else real
/// numbers.
struct DatasetInputs {
  at::Tensor values_NCHW = {};  ///< Inputs of the network, float32; undefined for images.
  at::Tensor labels_N = {};     ///< Classes, int64; undefined where targets are real numbers.
  at::Tensor groups_N = {};     ///< Groups, int64, or undefined.
  at::Tensor targets_NK = {};   ///< Targets, float32; undefined where targets are classes.
};

/// Calls `f` with each tensor of some inputs that is defined.
void for_each_tensor(DatasetInputs& inputs, auto&& f) {
  for (at::Tensor* tensor :
       {&inputs.values_NCHW, &inputs.labels_N, &inputs.groups_N, &inputs.targets_NK}) {
    if (tensor->defined()) f(*tensor);
  }
}

/// Known directions of inputs by name, each [K, d] float32, to compare weights with.
using Directions = std::map<std::string, at::Tensor>;

/// Metadata of a dataset. Images are unsigned bytes, channels first. Height and width are 0 where
/// images differ in size until preprocessing (data/preprocess.h). The targets are either classes or
/// real numbers: one of `classes` and `targets` is empty.
struct DatasetInfo {
  std::string name, split, description;
  std::vector<std::string> classes;  ///< Name of each label.
  int64_t channels = 0, height = 0, width = 0;
  std::vector<double> mean, std;     ///< One value per channel, of pixels scaled to [0, 1].
  std::vector<std::string> groups;   ///< Name of each group, a second label; may be empty.
  std::vector<std::string> targets;  ///< Name of each real-valued target.
  bool has_class_names = true;       ///< False where a description only counts them.
  /// Whether images are turned by their files' EXIF; unset means true.
  std::optional<bool> applies_exif = {};
  bool has_flexible_channels = false;  ///< Whether the network decides between grey and colours.
  /// False where the inputs are not images: then inputs() and generate() take the place of image()
  /// and read_crop().
  bool has_images = true;
  /// Whether every index >= 0 has an example, always the same one, so that a shuffled epoch
  /// continues where the previous one ended.
  bool is_endless = false;
  ResizeOptions resize = {};   ///< How parts of images are resized.
  Directions directions = {};  ///< Known directions of inputs that are no images.
};

/// Returns what an example of the data is called: "image", "row" of numbers, or else "example".
std::string example_noun(const DatasetInfo& info);

/// How an image is read from its file.
struct ReadOptions {
  /// Pixels that the chosen part keeps each way where it is read smaller than it is.
  int64_t min_side = 0;
  std::optional<bool> applies_exif = {};  ///< Overrides DatasetInfo::applies_exif.
};

/// Images or other inputs with their targets, read by index. Thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Returns the number of examples; for an endless dataset those that count as an epoch.
  virtual int64_t size() const = 0;
  /// Returns the class of an example, in [0, info().classes.size()). Throws Error (failure) if
  /// targets are real numbers.
  virtual int64_t label(int64_t index) const = 0;
  /// Returns the group of an example, in [0, info().groups.size()). Throws Error (failure) without
  /// groups.
  virtual int64_t group(int64_t index) const;
  /// Writes the info().targets.size() real-valued targets of an example to `out`. Throws Error
  /// (failure) without real-valued targets.
  virtual void targets(int64_t index, float* out) const;
  /// Writes the image's channels * height * width bytes to `out`, with `applies_exif`, where it is
  /// given, in place of DatasetInfo::applies_exif of this dataset and of those that it is made of.
  /// Throws Error (usage) where images differ in size, ImageError for one that is damaged.
  virtual void oriented_image(int64_t index, std::optional<bool> applies_exif,
                              uint8_t* out) const = 0;

  /// Chooses a part of an image of `height` x `width` pixels.
  using ChooseCrop = std::function<Rectangle(int64_t height, int64_t width)>;
  /// Reads an image as it is stored, or smaller by a whole factor where that is cheaper and the
  /// chosen part keeps at least options.min_side pixels each way, and perhaps the part alone.
  /// Returns where the part is in `bitmap`.
  virtual Rectangle decode(int64_t index, const ChooseCrop& choose, const ReadOptions& options,
                           Bitmap& bitmap) const;
  /// Returns the numbers of consecutive examples that lie together, e.g. in a shard, so that a
  /// shuffled epoch reads few of these blocks at a time; empty where any order is read as fast.
  virtual std::vector<int64_t> blocks() const { return {}; }
  /// Returns an image's file, unless images are not stored as files. Throws ImageError where it
  /// cannot be read; the bytes are not checked.
  virtual std::optional<EncodedImage> encoded(int64_t) const { return {}; }
  /// Returns that file's name and size, unless images are not stored as files. Throws ImageError
  /// for an image that was lost with its shard.
  virtual std::optional<ImageFile> file(int64_t) const { return {}; }

  /// Returns what is known of all examples.
  const DatasetInfo& info() const { return info_; }
  /// Returns DatasetInfo::is_endless.
  bool is_endless() const { return info_.is_endless; }
  /// Returns DatasetInfo::has_images.
  bool has_images() const { return info_.has_images; }
  /// Returns DatasetInfo::directions.
  Directions directions() const { return info_.directions; }
  /// Writes the image as oriented_image() does, turned as DatasetInfo::applies_exif says.
  void image(int64_t index, uint8_t* out) const { oriented_image(index, {}, out); }
  /// Writes the part that `choose` picks, resized to info()'s height and width: channels * height *
  /// width bytes, channels first. `applies_exif`: see oriented_image().
  void read_crop(int64_t index, const ChooseCrop& choose, uint8_t* out,
                 std::optional<bool> applies_exif = {}) const;
  /// Returns all inputs in memory; nothing for images and for an endless dataset.
  DatasetInputs inputs() const {
    return has_images() || is_endless() ? DatasetInputs{} : generate(0, size());
  }
  /// Returns the inputs `first` to `first + count - 1`, generated where they are not in memory, the
  /// same for any ranges. Throws Error (failure) for images and for indices that do not exist.
  DatasetInputs generate(int64_t first, int64_t count) const;
  /// Returns the bytes of one image: channels * height * width.
  int64_t image_size() const { return info_.channels * info_.height * info_.width; }

 protected:
  /// Throws Error (failure) for a name of a class, group or target that is empty, not UTF-8 or has
  /// control characters: checkpoints and reports have to store it.
  explicit Dataset(DatasetInfo info);
  /// Throws Error (failure) unless there is an example `index`.
  void check_index(int64_t index) const;

 private:
  /// Makes what generate() returns; the examples exist.
  virtual DatasetInputs make_inputs(int64_t first, int64_t count) const;

  DatasetInfo info_;
};

/// Makes a dataset of images in memory: `pixels` [N, C, H, W], `labels` [N]. Throws Error (failure)
/// if the sizes disagree with each other or with `info`, or a label has no class.
std::shared_ptr<const Dataset> make_memory_dataset(DatasetInfo info, std::vector<uint8_t> pixels,
                                                   std::vector<uint8_t> labels);

/// Makes a dataset of image files without labels, e.g. those to predict, of any sizes, read on
/// demand: image() and read_crop() throw ImageError for one that is damaged, and at once IoError
/// for one that is not there. `info` has classes, channels (3, or 1 for grey), mean and std, and
/// whether images are turned as EXIF says.
std::shared_ptr<const Dataset> make_image_dataset(DatasetInfo info,
                                                  const std::vector<fs::path>& files);

/// Makes a dataset of inputs in memory; info's channels, height and width become those of the
/// values. Throws Error (failure) if sizes disagree, a label has no class, a group no name, a
/// target is not finite, or there are both classes and real-valued targets.
std::shared_ptr<const Dataset> make_input_dataset(DatasetInfo info, DatasetInputs inputs);

/// Generates the inputs `first` to `first + count - 1`: always the same values for an index,
/// whatever the range. Thread-safe.
using MakeInputs = std::function<DatasetInputs(int64_t first, int64_t count)>;

/// Makes an endless dataset whose inputs are generated on the fly and not kept; `size` of them
/// count as an epoch. Input 0 is generated at once for its shape. Throws as make_input_dataset()
/// does.
std::shared_ptr<const Dataset> make_stream_dataset(DatasetInfo info, int64_t size, MakeInputs make);

/// Returns the groups of the examples `first` to `first + count - 1`, [count] int64; undefined
/// without groups.
at::Tensor group_indices(const Dataset& dataset, int64_t first, int64_t count);

}  // namespace moesaic
