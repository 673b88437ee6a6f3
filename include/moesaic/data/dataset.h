// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/data/resize.h"

namespace at {
class Tensor;
}

namespace moesaic {

/// An image that cannot be read; the message names its file. Others of the dataset may be sound.
class ImageError : public Error {
 public:
  explicit ImageError(const std::string& message) : Error(ErrorKind::failure, message) {}
};

/// What a dataset says of itself. Images are unsigned bytes, channels first. Height and width are
/// 0 where images differ in size; a preprocessing (data/preprocess.h) makes them alike. The targets
/// are either classes or real numbers: one of `classes` and `targets` is empty.
struct DatasetInfo {
  std::string name, split, description;
  std::vector<std::string> classes;  ///< the name of each label
  int64_t channels = 0, height = 0, width = 0;
  std::vector<double> mean, std;     ///< of each channel, for pixels scaled to [0, 1]
  std::vector<std::string> groups;   ///< names of another label, the group; none where it has none
  std::vector<std::string> targets;  ///< the name of each real-valued target
};

struct DatasetInputs;  // data/dataset_inputs.h

/// Images or other inputs with their targets, which can be read by index, by many threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of examples; of an endless dataset those that count as an epoch.
  virtual int64_t size() const = 0;
  /// Whether every index from 0 on has an example, the same one whenever it is asked for, and a
  /// shuffled epoch goes on where the one before it ended.
  virtual bool endless() const { return false; }
  /// The class of an example, in [0, info().classes.size()). Throws Error (failure) where targets
  /// are real numbers.
  virtual int64_t label(int64_t index) const = 0;
  /// The group of an example, in [0, info().groups.size()). Throws Error (failure) where there are
  /// none.
  virtual int64_t group(int64_t index) const;
  /// Writes the info().targets.size() real-valued targets of an example to `out`. Throws Error
  /// (failure) where there are none.
  virtual void targets(int64_t index, float* out) const;
  /// Writes the image's channels * height * width bytes to `out`. Throws Error (usage) where
  /// images differ in size, ImageError for one that is damaged.
  virtual void image(int64_t index, uint8_t* out) const = 0;

  /// Chooses a part of an image of `height` x `width` pixels.
  using ChoosePart = std::function<Rectangle(int64_t height, int64_t width)>;
  /// Reads an image as it is stored, or smaller by a whole factor where that is cheaper and the
  /// chosen part keeps at least `min` pixels each way. Returns where the part is in `bitmap`.
  virtual Rectangle decode(int64_t index, const ChoosePart& choose, int64_t min,
                           Bitmap& bitmap) const;
  /// Writes the part that `choose` picks, resized to info()'s height and width: channels * height *
  /// width bytes, channels first.
  virtual void part(int64_t index, const ChoosePart& choose, uint8_t* out) const;

  /// False where the inputs are no images: image() and part() have nothing to give then, inputs()
  /// and generate() do.
  virtual bool has_images() const;
  /// All inputs that are no images, in memory; nothing of images and of an endless dataset.
  virtual DatasetInputs inputs() const;
  /// The inputs `first` to `first + count - 1`, made on the fly where they are not in memory; the
  /// same ones in any pieces. Throws Error (failure) for images and for indices that do not exist.
  virtual DatasetInputs generate(int64_t first, int64_t count) const;
  /// Known directions of the inputs by name, each [K, d] float32, that weights may be compared
  /// with; empty where none are known.
  virtual std::map<std::string, at::Tensor> directions() const;

  const DatasetInfo& info() const { return info_; }
  /// Bytes of one image: channels * height * width.
  int64_t image_size() const { return info_.channels * info_.height * info_.width; }

 protected:
  explicit Dataset(DatasetInfo info) : info_(std::move(info)) {}
  /// Throws Error (failure) unless there is an example `index`.
  void check_index(int64_t index) const;

 private:
  DatasetInfo info_;
};

/// A dataset of images in memory: `pixels` [N, C, H, W], `labels` [N]. Throws Error (failure) where
/// the sizes disagree with each other or with `info`, or a label has no class.
std::shared_ptr<const Dataset> make_memory_dataset(DatasetInfo info, std::vector<uint8_t> pixels,
                                                   std::vector<uint8_t> labels);

/// A dataset of the images of `base` whose class is among `keep_classes`, in their old order;
/// labels become places in `keep_classes`. Shares the memory of `base`. Throws Error (usage) on a
/// class that `base` lacks or that is given twice.
std::shared_ptr<const Dataset> make_class_subset(std::shared_ptr<const Dataset> base,
                                                 const std::vector<std::string>& keep_classes,
                                                 std::string name, std::string description = "");

/// A dataset of the first `count` images of `base`, finite even where that is endless. Shares its
/// memory. Throws Error (failure) where there are
/// fewer.
std::shared_ptr<const Dataset> make_first_of(std::shared_ptr<const Dataset> base, int64_t count,
                                             std::string name, std::string description = "");

/// The same dataset by another name. Shares its memory.
std::shared_ptr<const Dataset> make_renamed(std::shared_ptr<const Dataset> base, std::string name,
                                            std::string description = "");

/// Opens a dataset described in datasets/<name>.json, in another file that ends in .json, or a
/// folder of images given with a slash (load_dataset_spec). `split` is one of dataset_splits(name),
/// or "train+validation": what "train" would be if nothing were held out. Small images are in
/// memory afterwards, of folders only the list of files is. Throws Error: usage for an unknown name
/// or split and for a split that the dataset does not have; failure for files that are missing (the
/// message tells how to get them), damaged, or at odds with each other.
std::shared_ptr<const Dataset> open_dataset(std::string_view name, std::string_view split);

/// The splits of a dataset: train, validation (where one is stored or held out) and test.
std::vector<std::string> dataset_splits(std::string_view name);

/// Opens the same by its description alone, without any file: sizes, classes and shape are right,
/// images cannot be read. For plans. Throws Error (usage) where the description does not tell.
std::shared_ptr<const Dataset> outline_dataset(std::string_view name, std::string_view split);

/// Opens datasets for plans: a dataset itself where its files are found, else its outline, with a
/// warning for each name that says so.
class PlannedDatasets {
 public:
  std::shared_ptr<const Dataset> operator()(std::string_view name, std::string_view split);

 private:
  std::set<std::string, std::less<>> absent_;
};

/// A described dataset and where its files are.
struct DatasetStatus {
  std::string name, description;
  std::string base;                             ///< of a subset: the dataset that it is cut from
  int64_t classes = 0;                          ///< 0: unknown, or none
  bool fetchable = false;                       ///< it has an address to fetch it from
  bool generated = false;                       ///< it is made when it is opened, without files
  std::filesystem::path folder;                 ///< empty where no folder holds all files
  std::vector<std::filesystem::path> searched;  ///< in order
  bool found() const { return !folder.empty(); }
  /// The folder, or "not here; " and how to get the files.
  std::string where() const;
};

/// Every described dataset, by name.
std::vector<DatasetStatus> dataset_statuses();

/// One file of a dataset after a comparison with its description.
struct FileVerification {
  std::string name;            ///< as described, without .gz
  std::filesystem::path path;  ///< empty where the file is missing
  std::string problem;         ///< one line; empty where the file is right
  bool ok() const { return problem.empty(); }
};

/// Compares size and SHA-256 of every file's unpacked bytes with the description (a subset: its
/// base's). Where no files are described, the format looks at its own: of folders of images every
/// image is decoded, those that are damaged or odd are listed, and one line says how many are
/// sound. Throws Error: usage for an unknown name, failure where no file of the dataset is found.
std::vector<FileVerification> verify_dataset(std::string_view name);

}  // namespace moesaic
