// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <utility>

#include "moesaic/data/source.h"

namespace moesaic {

/// Compact list of file names, the only memory per image of a dataset like ImageNet.
class FileList {
 public:
  explicit FileList(fs::path root) : root_(std::move(root)) {}

  /// Returns the number of the folder for add().
  int32_t add_folder(const std::string& name) {
    folders_.push_back(name);
    return static_cast<int32_t>(folders_.size() - 1);
  }
  void add(int32_t folder, const std::string& name, int32_t label) {
    entries_.push_back({names_.size(), folder, label});
    names_ += name;
    names_ += '\0';
  }

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  fs::path path(int64_t index) const { return root_ / name(index); }
  /// Returns the path below the root.
  fs::path name(int64_t index) const {
    const Entry& entry = entries_[static_cast<size_t>(index)];
    return fs::path(folders_[static_cast<size_t>(entry.folder)]) / (names_.c_str() + entry.name);
  }
  int64_t label(int64_t index) const { return entries_[static_cast<size_t>(index)].label; }

 private:
  struct Entry {
    uint64_t name;
    int32_t folder, label;
  };
  fs::path root_;
  std::vector<std::string> folders_;
  std::string names_;  ///< Names, concatenated, each terminated by 0.
  std::vector<Entry> entries_;
};

/// Base of datasets of encoded images, JPEG, PNG or WebP, read on demand. They are RGB, or grey
/// where info().channels is 1, of any sizes where info().height is 0, and turned as EXIF says
/// unless info().applies_exif is false. The first that is odd but can be used is named in a
/// warning.
class StoredImages : public Dataset {
 public:
  void oriented_image(int64_t index, std::optional<bool> applies_exif, uint8_t* out) const override;
  Rectangle decode(int64_t index, const ChooseCrop& choose, const ReadOptions& options,
                   Bitmap& bitmap) const override;
  std::optional<EncodedImage> encoded(int64_t index) const override {
    return EncodedImage{read(index), info().applies_exif.value_or(true), path(index).string()};
  }

  struct Problem {
    std::string text;  ///< Empty where there is none, or it was said already.
    bool is_readable = true;
  };
  /// Decodes the image; returns its problem.
  Problem problem(int64_t index) const;
  /// Returns the name of the image's file, which for members of archives lies below the archive.
  virtual fs::path path(int64_t index) const = 0;

 protected:
  /// `pause`: see retry_io().
  StoredImages(DatasetInfo info, SleepFunction pause)
      : Dataset(std::move(info)), pause_(std::move(pause)) {}
  /// Returns the bytes of the image's file. Throws IoError where it still cannot be read after some
  /// tries, ImageError where it is no image's.
  virtual std::string read(int64_t index) const = 0;
  const SleepFunction& pause() const { return pause_; }

 private:
  SleepFunction pause_;
  mutable std::atomic<bool> warned_ = false;  ///< Of an odd image that can be used.
};

/// Max number of bytes of an image's file.
inline constexpr int64_t kMaxImageFileBytes = int64_t{1} << 28;

/// Image files. `groups` has one for each file, or none.
class ImageFiles final : public StoredImages {
 public:
  ImageFiles(DatasetInfo info, FileList files, std::vector<uint8_t> groups = {},
             SleepFunction pause = sleep_for)
      : StoredImages(std::move(info), std::move(pause)),
        files_(std::move(files)),
        groups_(std::move(groups)) {}

  int64_t size() const override { return files_.size(); }
  int64_t label(int64_t index) const override;
  int64_t group(int64_t index) const override;
  fs::path path(int64_t index) const override { return files_.path(index); }
  std::optional<ImageFile> file(int64_t index) const override;

 private:
  std::string read(int64_t index) const override;

  FileList files_;
  std::vector<uint8_t> groups_;
};

/// Name of the label of images without one, which label() does not return.
inline constexpr int32_t kNoLabel = -1;

/// Decodes every image on all processors; returns the corrupt ones, in order, the classes of which
/// no image can be read, and a line on all others.
std::vector<FileVerification> verify_images(const StoredImages& images);

}  // namespace moesaic
