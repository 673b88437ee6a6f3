// SPDX-License-Identifier: Apache-2.0
// MNIST and similar datasets: a file of images and one of labels for each split.
#include "moesaic/formats/idx.h"

#include <algorithm>
#include <cmath>

#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

struct IdxSettings {};
void describe(auto&, IdxSettings&) {}

/// Checks that both splits have their files and that every role is one of the format's.
ConfigProblem idx_files_problem(const DatasetSpec& spec) {
  static const std::vector<std::string> kRoles = {"train_images", "train_labels", "test_images",
                                                  "test_labels"};
  for (const auto& [role, file] : spec.files) {
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
      return {fmt::format("unknown key '{}' in files; {}", role, did_you_mean(role, kRoles)),
              {"files." + role + ":"}};
    }
    if (file.sha256.empty()) {
      return {fmt::format("files.{}.sha256 is missing", role), {"files." + role}};
    }
  }
  for (const std::string& role : kRoles) {
    if (!spec.files.contains(role)) return {fmt::format("files.{} is missing", role), {"files"}};
  }
  return {};
}

ConfigProblem check_idx(const DatasetSpec& spec) {
  return first_problem(
      {idx_files_problem(spec),
       spec.classes.empty() ? ConfigProblem("classes is missing") : classes_problem(spec),
       unknown_split(spec.num_images, "num_images"), channels_problem(spec, 1)});
}

std::shared_ptr<const Dataset> open_idx(const DatasetSpec& spec, DatasetInfo info,
                                        const fs::path& folder) {
  const fs::path images_path = checked_file(spec, folder, info.split + "_images");
  const fs::path labels_path = checked_file(spec, folder, info.split + "_labels");
  idx::Array images = idx::read(images_path);
  idx::Array labels = idx::read(labels_path);
  if (images.shape.size() != 3) {
    fail("{}: images need shape [N, height, width], found {}", images_path.string(),
         shape_text(images.shape));
  }
  if (labels.shape.size() != 1) {
    fail("{}: labels need shape [N], found {}", labels_path.string(), shape_text(labels.shape));
  }
  if (images.shape[0] != labels.shape[0]) {
    fail("{} holds {} images, but {} holds {} labels", images_path.string(), images.shape[0],
         labels_path.string(), labels.shape[0]);
  }
  check_labels(labels.values, info.classes.size(), labels_path.string());
  info.channels = 1;
  info.height = images.shape[1];
  info.width = images.shape[2];
  if (info.height < 1 || info.width < 1) {
    fail("{}: images without pixels: {}", images_path.string(), shape_text(images.shape));
  }
  return make_memory_dataset(std::move(info), std::move(images.values), std::move(labels.values));
}

/// Takes the images for square ones, of as many bytes as the described files leave to each.
void fill_idx_info(const DatasetSpec& spec, DatasetInfo& info) {
  constexpr int64_t kHeader = 16;
  const auto count = spec.num_images.find(info.split);
  const auto file = spec.files.find(info.split + "_images");
  if (count == spec.num_images.end() || file == spec.files.end()) return;
  if (file->second.size < kHeader) return;
  const int64_t pixels = (file->second.size - kHeader) / count->second;
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(pixels))));
  info.channels = 1;
  info.height = info.width = side;
}

}  // namespace

DatasetFormat idx_format() {
  return {.settings = NamedSettings("idx", IdxSettings{}),
          .description = "pairs of IDX files, as MNIST has: images and labels of each split",
          .check = check_idx,
          .open = open_idx,
          .fill_info = fill_idx_info};
}

}  // namespace moesaic
