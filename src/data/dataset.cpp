// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/nearest.h"
#include "moesaic/data/catalog.h"
#include "moesaic/formats/idx.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

class MemoryDataset final : public Dataset {
 public:
  MemoryDataset(DatasetInfo info, std::vector<uint8_t> pixels, std::vector<uint8_t> labels)
      : Dataset(std::move(info)), pixels_(std::move(pixels)), labels_(std::move(labels)) {}

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }

  int64_t label(int64_t index) const override {
    check_index(index);
    return labels_[static_cast<size_t>(index)];
  }

  void image(int64_t index, uint8_t* out) const override {
    check_index(index);
    std::memcpy(out, pixels_.data() + index * image_size(), static_cast<size_t>(image_size()));
  }

 private:
  std::vector<uint8_t> pixels_, labels_;
};

class ClassSubset final : public Dataset {
 public:
  /// new_label[old label]: -1 where the class is left out.
  ClassSubset(DatasetInfo info, std::shared_ptr<const Dataset> base,
              const std::vector<int64_t>& new_label)
      : Dataset(std::move(info)), base_(std::move(base)) {
    for (int64_t i = 0; i < base_->size(); ++i) {
      const int64_t label = new_label[static_cast<size_t>(base_->label(i))];
      if (label >= 0) items_.push_back({i, label});
    }
  }

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }

  int64_t label(int64_t index) const override {
    check_index(index);
    return items_[static_cast<size_t>(index)].label;
  }

  void image(int64_t index, uint8_t* out) const override {
    check_index(index);
    base_->image(items_[static_cast<size_t>(index)].index, out);
  }

 private:
  struct Item {
    int64_t index, label;
  };
  std::shared_ptr<const Dataset> base_;
  std::vector<Item> items_;
};

/// The numbers behind make_memory_dataset and read_idx agree, or an Error that begins with `where`.
void check_labels(const std::vector<uint8_t>& labels, size_t classes, const std::string& where) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= classes) {
      fail("{}: label {} of picture {} has no class: there are {}", where, labels[i], i, classes);
    }
  }
}

std::string picture_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::shared_ptr<const Dataset> read_idx(DatasetInfo info, const fs::path& images_path,
                                        const fs::path& labels_path) {
  idx::Array images = idx::read(images_path);
  idx::Array labels = idx::read(labels_path);
  if (images.shape.size() != 3) {
    fail("{}: pictures need shape [N, height, width], found {}", images_path.string(),
         picture_shape(images.shape));
  }
  if (labels.shape.size() != 1) {
    fail("{}: labels need shape [N], found {}", labels_path.string(), picture_shape(labels.shape));
  }
  if (images.shape[0] != labels.shape[0]) {
    fail("{} holds {} pictures, but {} holds {} labels", images_path.string(), images.shape[0],
         labels_path.string(), labels.shape[0]);
  }
  check_labels(labels.values, info.classes.size(), labels_path.string());
  info.channels = 1;
  info.height = images.shape[1];
  info.width = images.shape[2];
  if (info.height < 1 || info.width < 1) {
    fail("{}: pictures without pixels: {}", images_path.string(), picture_shape(images.shape));
  }
  return make_memory_dataset(std::move(info), std::move(images.values), std::move(labels.values));
}

/// How the user gets the files that are in none of the searched folders.
[[noreturn]] void fail_missing(const DatasetSpec& spec) {
  std::vector<std::string> folders;
  for (const fs::path& folder : search_folders(spec)) folders.push_back(folder.string());
  const std::string package =
      spec.debian_package.empty() ? "" : fmt::format(" or install {}", spec.debian_package);
  fail("dataset '{0}': files not found in {1}; run 'moesaic data fetch {0}'{2}", spec.name,
       fmt::join(folders, ", "), package);
}

/// The folder with every file, or else the first one with any.
fs::path find_any_folder(const DatasetSpec& spec) {
  if (fs::path folder = find_folder(spec); !folder.empty()) return folder;
  for (const fs::path& folder : search_folders(spec)) {
    for (const auto& [role, file] : spec.files) {
      if (!find_in(folder, file).empty()) return folder;
    }
  }
  return {};
}

/// The file of a role, compared with its description: a changed picture must not go unnoticed.
fs::path checked_file(const DatasetSpec& spec, const fs::path& folder, const std::string& role) {
  const DatasetFile& file = spec.files.at(role);
  const fs::path path = find_in(folder, file);
  const std::string problem = compare_file(path, file);
  if (!problem.empty()) fail("{}; see moesaic data verify {}", problem, spec.name);
  return path;
}

std::shared_ptr<const Dataset> open_own(const DatasetSpec& spec, const std::string& split) {
  const fs::path folder = find_folder(spec, split);
  if (folder.empty()) fail_missing(spec);
  DatasetInfo info;
  info.name = spec.name;
  info.split = split;
  info.description = spec.description;
  info.classes = spec.classes;
  info.mean = spec.mean;
  info.std = spec.std;
  return read_idx(std::move(info), checked_file(spec, folder, split + "_images"),
                  checked_file(spec, folder, split + "_labels"));
}

}  // namespace

void Dataset::check_index(int64_t index) const {
  if (index < 0 || index >= size()) {
    fail("dataset '{}': picture {} of {} does not exist", info_.name, index, size());
  }
}

std::shared_ptr<const Dataset> make_memory_dataset(DatasetInfo info, std::vector<uint8_t> pixels,
                                                   std::vector<uint8_t> labels) {
  if (info.channels < 1 || info.height < 1 || info.width < 1) {
    fail("dataset '{}': pictures need at least one pixel, found {} x {} x {}", info.name,
         info.channels, info.height, info.width);
  }
  const std::optional<uint64_t> row = checked_mul(info.height, info.width);
  const std::optional<uint64_t> one = row ? checked_mul(*row, info.channels) : std::nullopt;
  const std::optional<uint64_t> all = one ? checked_mul(*one, labels.size()) : std::nullopt;
  if (!all || *all != pixels.size()) {
    fail("dataset '{}': {} labels of {} x {} x {} pictures, but {} bytes of pixels", info.name,
         labels.size(), info.channels, info.height, info.width, pixels.size());
  }
  check_labels(labels, info.classes.size(), fmt::format("dataset '{}'", info.name));
  return std::make_shared<MemoryDataset>(std::move(info), std::move(pixels), std::move(labels));
}

std::shared_ptr<const Dataset> make_class_subset(std::shared_ptr<const Dataset> base,
                                                 const std::vector<std::string>& keep_classes,
                                                 std::string name, std::string description) {
  DatasetInfo info = base->info();
  std::vector<int64_t> new_label(info.classes.size(), -1);
  for (size_t kept = 0; kept < keep_classes.size(); ++kept) {
    const auto found = std::find(info.classes.begin(), info.classes.end(), keep_classes[kept]);
    if (found == info.classes.end()) {
      fail_usage("dataset '{}': keep_classes: '{}' has no class '{}'; {}", name, info.name,
                 keep_classes[kept], did_you_mean(keep_classes[kept], info.classes));
    }
    int64_t& label = new_label[static_cast<size_t>(found - info.classes.begin())];
    if (label >= 0) fail_usage("dataset '{}': keep_classes names '{}' twice", name, *found);
    label = static_cast<int64_t>(kept);
  }
  info.name = std::move(name);
  info.description = std::move(description);
  info.classes = keep_classes;
  return std::make_shared<ClassSubset>(std::move(info), std::move(base), new_label);
}

std::shared_ptr<const Dataset> open_dataset(std::string_view name, std::string_view split) {
  static const std::vector<std::string> kSplits = {"train", "test"};
  if (std::find(kSplits.begin(), kSplits.end(), split) == kSplits.end()) {
    fail_usage("dataset '{}': unknown split '{}'; {}", name, split, did_you_mean(split, kSplits));
  }
  load_base_spec(name);  // finds a circle of bases before the recursion below would follow it
  const DatasetSpec spec = load_dataset_spec(name);
  if (spec.base.empty()) return open_own(spec, std::string(split));
  return make_class_subset(open_dataset(spec.base, split), spec.keep_classes, spec.name,
                           spec.description);
}

std::vector<DatasetStatus> dataset_statuses() {
  std::vector<DatasetStatus> statuses;
  for (const std::string& name : dataset_names()) {
    const DatasetSpec spec = load_dataset_spec(name);
    const DatasetSpec base = load_base_spec(name);
    DatasetStatus status;
    status.name = spec.name;
    status.description = spec.description;
    status.base = spec.base;
    status.classes =
        static_cast<int64_t>((spec.base.empty() ? spec.classes : spec.keep_classes).size());
    status.folder = find_folder(base);
    status.searched = search_folders(base);
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<FileVerification> verify_dataset(std::string_view name) {
  const DatasetSpec spec = load_base_spec(name);
  const fs::path folder = find_any_folder(spec);
  if (folder.empty()) fail_missing(spec);
  std::vector<FileVerification> results;
  for (const auto& [role, file] : spec.files) {
    FileVerification result{file.name, find_in(folder, file), ""};
    result.problem = result.path.empty()
                         ? fmt::format("{}: no such file", (folder / file.name).string())
                         : compare_file(result.path, file);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace moesaic
