// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/data/dataset.h"

namespace moesaic {

/// Compact list of file names, the only memory per image of a dataset like ImageNet.
class FileList {
 public:
  explicit FileList(std::filesystem::path root) : root_(std::move(root)) {}

  /// Returns the number of the folder for add().
  int32_t add_folder(const std::string& name);
  void add(int32_t folder, const std::string& name, int32_t label);

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  std::filesystem::path path(int64_t index) const;
  int64_t label(int64_t index) const { return entries_[static_cast<size_t>(index)].label; }

 private:
  struct Entry {
    uint64_t name;
    int32_t folder, label;
  };
  std::filesystem::path root_;
  std::vector<std::string> folders_;
  std::string names_;  ///< Names, concatenated, each terminated by 0.
  std::vector<Entry> entries_;
};

/// Image files of any size, read on demand, turned as EXIF says where they are wanted upright.
/// `groups` has one for each file, or none.
class ImageFiles final : public Dataset {
 public:
  ImageFiles(DatasetInfo info, FileList files, bool upright, std::vector<uint8_t> groups = {})
      : Dataset(std::move(info)),
        files_(std::move(files)),
        upright_(upright),
        groups_(std::move(groups)) {}

  int64_t size() const override { return files_.size(); }
  int64_t label(int64_t index) const override;
  int64_t group(int64_t index) const override;
  void image(int64_t index, uint8_t* out) const override;
  Rectangle decode(int64_t index, const ChoosePart& choose, int64_t min,
                   Bitmap& bitmap) const override;
  struct Problem {
    std::string text;  ///< Empty where there is none.
    bool readable = true;
  };
  /// Decodes the image; returns its problem.
  Problem problem(int64_t index) const;
  std::filesystem::path path(int64_t index) const { return files_.path(index); }

 private:
  FileList files_;
  bool upright_;
  std::vector<uint8_t> groups_;
};

/// Name of the label of images without one, which label() does not return.
inline constexpr int32_t kNoLabel = -1;

/// Decodes every image on all processors; returns the damaged ones, in order, the classes of which
/// no image can be read, and a line on all others.
std::vector<FileVerification> verify_images(const ImageFiles& images);

}  // namespace moesaic
