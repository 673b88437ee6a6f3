// SPDX-License-Identifier: Apache-2.0
// From a description to a dataset: finds the files, compares them with it and reads them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "check_labels.h"
#include "image_files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/memory.h"
#include "moesaic/base/nearest.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/cluster_mixture.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/dataset_inputs.h"
#include "moesaic/data/embeddings.h"
#include "moesaic/data/rotate.h"
#include "moesaic/formats/cifar.h"
#include "moesaic/formats/idx.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

std::string image_shape(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::shared_ptr<const Dataset> read_idx(DatasetInfo info, const fs::path& images_path,
                                        const fs::path& labels_path) {
  idx::Array images = idx::read(images_path);
  idx::Array labels = idx::read(labels_path);
  if (images.shape.size() != 3) {
    fail("{}: images need shape [N, height, width], found {}", images_path.string(),
         image_shape(images.shape));
  }
  if (labels.shape.size() != 1) {
    fail("{}: labels need shape [N], found {}", labels_path.string(), image_shape(labels.shape));
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
    fail("{}: images without pixels: {}", images_path.string(), image_shape(images.shape));
  }
  return make_memory_dataset(std::move(info), std::move(images.values), std::move(labels.values));
}

/// How the user gets the files that are in none of the searched folders.
[[noreturn]] void fail_missing(const DatasetSpec& spec, const std::string& split = {}) {
  std::vector<std::string> folders;
  for (const fs::path& folder : search_folders(spec)) folders.push_back(folder.string());
  std::string what = "files";
  if (spec.format == "image_folder" && !split.empty()) {
    what = fmt::format("folder '{}'", split_source(spec, split));
  } else if (spec.embeddings) {
    what = fmt::format("file '{}'", split_source(spec, split.empty() ? "train" : split));
  }
  const std::string fetch = spec.embeddings ? "; put it or a link there"
                            : spec.files.empty()
                                ? "; put them or a link there"
                                : fmt::format("; run 'moesaic data fetch {}'", spec.name);
  const std::string package =
      spec.debian_package.empty() ? "" : fmt::format(" or install {}", spec.debian_package);
  fail("dataset '{}': {} not found in {}{}{}", spec.name, what, fmt::join(folders, ", "), fetch,
       package);
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

/// The file of a role, compared with its description: a changed image must not go unnoticed.
fs::path checked_file(const DatasetSpec& spec, const fs::path& folder, const std::string& role) {
  const DatasetFile& file = spec.files.at(role);
  const fs::path path = find_in(folder, file);
  const std::string problem = compare_file(path, file);
  if (!problem.empty()) fail("{}; see moesaic data verify {}", problem, spec.name);
  return path;
}

/// The roles of a split in the order of their numbers: test_2 before test_10.
std::vector<std::string> numbered_roles(const DatasetSpec& spec, const std::string& split) {
  std::vector<std::string> roles;
  for (const auto& [role, file] : spec.files) {
    if (role.starts_with(split + "_")) roles.push_back(role);
  }
  std::stable_sort(roles.begin(), roles.end(),
                   [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
  return roles;
}

/// Batches that came from elsewhere have no hash to compare with: they are used. Whoever asks, by
/// 'moesaic data verify', is told; at every run it would only be in the way.
void note_unverified(const DatasetSpec& spec, const fs::path& folder) {
  const bool all_known = std::all_of(spec.files.begin(), spec.files.end(),
                                     [](const auto& item) { return !item.second.sha256.empty(); });
  if (all_known) return;
  log_debug(
      "dataset '{}': {} was not unpacked by 'moesaic data fetch': sizes and labels are "
      "checked, pixels cannot be compared with the official archive's",
      spec.name, folder.string());
}

std::shared_ptr<const Dataset> read_cifar(DatasetInfo info, const DatasetSpec& spec,
                                          const fs::path& folder) {
  cifar::Records records;
  for (const std::string& role : numbered_roles(spec, info.split)) {
    const fs::path path = checked_file(spec, folder, role);
    const size_t before = records.labels.size();
    cifar::read(path, spec.files.at(role).size, {spec.label_bytes, spec.label_at}, records);
    check_labels(std::span(records.labels).subspan(before), info.classes.size(), path.string());
  }
  note_unverified(spec, folder);
  info.channels = cifar::kChannels;
  info.height = cifar::kHeight;
  info.width = cifar::kWidth;
  return make_memory_dataset(std::move(info), std::move(records.pixels), std::move(records.labels));
}

DatasetInfo described_info(const DatasetSpec& spec, const std::string& split) {
  DatasetInfo info;
  info.name = spec.name;
  info.split = split;
  info.description = spec.description;
  info.classes = spec.classes;
  info.mean = spec.mean;
  info.std = spec.std;
  return info;
}

void check_memory_of(const DatasetSpec& spec, const std::string& split) {
  const ClusterMixtureConfig& config = *spec.clusters;
  const int64_t count = split == "train" ? config.train : config.test;
  const double bytes = sizeof(float) * static_cast<double>(count) *
                       static_cast<double>(config.patches * config.width);
  check_memory(bytes,
               fmt::format("the {} split of {} examples of {} x {} numbers", split, count,
                           config.patches, config.width),
               fmt::format("dataset '{}'", spec.name));
}

std::shared_ptr<const Dataset> generate(const DatasetSpec& spec, const std::string& split) {
  check_memory_of(spec, split);
  DatasetInfo info = described_info(spec, split);
  info.classes = {"-1", "+1"};
  for (int64_t k = 1; k <= spec.clusters->clusters; ++k) {
    info.groups.push_back(fmt::format("cluster {}", k));
  }
  ClusterExamples examples = cluster_examples(*spec.clusters, split);
  return make_input_dataset(std::move(info),
                            {examples.x_NPd.unsqueeze(1), examples.labels_N, examples.cluster_N});
}

/// An embedding is an image of one channel and one row; its language is its group.
std::shared_ptr<const Dataset> open_embeddings(const DatasetSpec& spec, const fs::path& folder,
                                               const std::string& split) {
  Embeddings texts = read_embeddings(*spec.embeddings, folder, split);
  const auto classes = static_cast<int64_t>(texts.classes.size());
  if (spec.class_count > 0 && classes != spec.class_count) {
    fail("{}: {} classes in its metadata, dataset '{}' has {}",
         (folder / split_source(spec, split)).string(), classes, spec.name, spec.class_count);
  }
  DatasetInfo info = described_info(spec, split);
  info.classes = std::move(texts.classes);
  info.groups = std::move(texts.languages);
  const int64_t count = texts.x_Nd.size(0);
  return make_input_dataset(std::move(info), {texts.x_Nd.view({count, 1, 1, texts.x_Nd.size(1)}),
                                              texts.label_N, texts.language_N});
}

std::shared_ptr<const Dataset> open_own(const DatasetSpec& described, const std::string& split) {
  if (described.generated()) return generate(described, split);
  const fs::path folder = find_folder(described, split);
  if (folder.empty()) fail_missing(described, split);
  if (described.embeddings) return open_embeddings(described, folder, split);
  const DatasetSpec spec = with_recorded_hashes(described, folder);
  DatasetInfo info = described_info(spec, split);
  if (spec.format == "image_folder") return open_image_folder(std::move(info), spec, folder);
  if (spec.format == "celeba") return open_celeba(std::move(info), spec, folder);
  if (spec.format == "cifar") return read_cifar(std::move(info), spec, folder);
  return read_idx(std::move(info), checked_file(spec, folder, split + "_images"),
                  checked_file(spec, folder, split + "_labels"));
}

/// Of a file without a hash: whether all that can be known of it is right.
std::string unproven_problem(const DatasetSpec& spec, const fs::path& path,
                             const DatasetFile& file) {
  cifar::Records records;
  try {
    cifar::read(path, file.size, {spec.label_bytes, spec.label_at}, records);
    check_labels(records.labels, spec.classes.size(), path.string());
  } catch (const Error& error) {
    return error.what();
  }
  return fmt::format(
      "{}: size and labels are right, but it was not unpacked by 'moesaic data fetch "
      "{}': nothing says that its pixels are the official ones",
      path.string(), spec.name);
}

/// Knows everything but pixels.
class Outline final : public Dataset {
 public:
  Outline(DatasetInfo info, int64_t size) : Dataset(std::move(info)), size_(size) {}
  int64_t size() const override { return size_; }
  int64_t label(int64_t) const override { fail_unreadable(); }
  void image(int64_t, uint8_t*) const override { fail_unreadable(); }

 private:
  [[noreturn]] void fail_unreadable() const {
    fail("dataset '{}': this is its outline, without images", info().name);
  }
  int64_t size_;
};

void check_split(std::string_view name, std::string_view split) {
  static const std::vector<std::string> kSplits = {"train", "test"};
  if (std::find(kSplits.begin(), kSplits.end(), split) == kSplits.end()) {
    fail_usage("dataset '{}': unknown split '{}'; {}", name, split, did_you_mean(split, kSplits));
  }
}

int64_t described_classes(const DatasetSpec& spec) {
  if (spec.generated() || spec.rotate) return 2;
  if (!spec.first.empty()) return described_classes(load_dataset_spec(spec.base));
  if (!spec.keep_classes.empty()) return static_cast<int64_t>(spec.keep_classes.size());
  return spec.classes.empty() ? spec.class_count : static_cast<int64_t>(spec.classes.size());
}

FileVerification verify_embeddings(const DatasetSpec& spec, const fs::path& folder,
                                   const std::string& split) {
  const std::string name = split_source(spec, split);
  FileVerification result{name, folder / name, ""};
  try {
    read_embeddings(*spec.embeddings, folder, split);
  } catch (const Error& error) {
    result.problem = error.what();
  }
  return result;
}

/// A split that is not there is no fault of the other one.
std::vector<FileVerification> verify_folders(const DatasetSpec& spec) {
  std::vector<FileVerification> results;
  for (const std::string split : {"train", "test"}) {
    if (spec.embeddings && !spec.embeddings->file.empty() && split == "test") continue;
    const fs::path folder = find_folder(spec, split);
    if (folder.empty()) {
      results.push_back({split, {}, fmt::format("{}: not found", split_source(spec, split))});
      continue;
    }
    if (spec.embeddings) {
      results.push_back(verify_embeddings(spec, folder, split));
      continue;
    }
    DatasetInfo info = described_info(spec, split);
    const auto images = spec.format == "celeba" ? open_celeba(std::move(info), spec, folder)
                                                : open_image_folder(std::move(info), spec, folder);
    for (FileVerification& file : verify_images(*images)) results.push_back(std::move(file));
    const auto expected = spec.images.find(split);
    if (expected != spec.images.end() && expected->second != images->size()) {
      results.push_back(
          {split, folder,
           fmt::format("{}: {} images, expected {}", split, images->size(), expected->second)});
    }
  }
  return results;
}

std::shared_ptr<const Dataset> outline_own(const DatasetSpec& spec, const std::string& split) {
  const auto images = spec.images.find(split);
  if (images == spec.images.end() || described_classes(spec) == 0) {
    fail_usage("dataset '{}': its description does not tell how many images or classes there are",
               spec.name);
  }
  DatasetInfo info = described_info(spec, split);
  info.channels = static_cast<int64_t>(spec.mean.size());
  for (int64_t i = static_cast<int64_t>(info.classes.size()); i < spec.class_count; ++i) {
    info.classes.push_back(fmt::format("class {}", i));
  }
  if (spec.embeddings) {
    info.channels = info.height = 1;
    info.width = spec.embeddings->width;
    info.mean = {0.0};
    info.std = {1.0};
  }
  if (spec.format == "cifar") {
    info.height = cifar::kHeight;
    info.width = cifar::kWidth;
  }
  return std::make_shared<Outline>(std::move(info), images->second);
}

/// Can it be outlined? How many images have some classes is known from labels alone.
bool tells_size(const DatasetSpec& spec, const std::string& split) {
  if (spec.base.empty()) return spec.images.contains(split);
  return spec.keep_classes.empty() && tells_size(load_dataset_spec(spec.base), split);
}

/// What `spec` makes of its base.
std::shared_ptr<const Dataset> derived(const DatasetSpec& spec, std::shared_ptr<const Dataset> base,
                                       const std::string& split) {
  if (spec.rotate) {
    return make_rotated_pairs(std::move(base), *spec.rotate, spec.name, spec.description);
  }
  if (!spec.keep_classes.empty()) {
    return make_class_subset(std::move(base), spec.keep_classes, spec.name, spec.description);
  }
  const auto first = spec.first.find(split);
  const int64_t count = first == spec.first.end() ? base->size() : first->second;
  return make_first_of(std::move(base), count, spec.name, spec.description);
}

}  // namespace

std::shared_ptr<const Dataset> outline_dataset(std::string_view name, std::string_view split) {
  check_split(name, split);
  load_base_spec(name);  // finds a circle of bases before the recursion below would follow it
  const DatasetSpec spec = load_dataset_spec(name);
  const std::string part(split);
  if (spec.base.empty()) return outline_own(spec, part);
  if (!spec.keep_classes.empty()) {
    fail_usage("dataset '{}': its description does not tell how many images or classes there are",
               spec.name);
  }
  return derived(spec, outline_dataset(spec.base, split), part);
}

std::shared_ptr<const Dataset> PlannedDatasets::operator()(std::string_view name,
                                                           std::string_view split) {
  check_split(name, split);
  const DatasetSpec files = load_base_spec(name);
  const bool absent = !files.generated() && find_folder(files, split).empty();
  if (!absent || !tells_size(load_dataset_spec(name), std::string(split))) {
    return open_dataset(name, split);
  }
  if (absent_.emplace(name).second) {
    log_warning("dataset '{}': its files are not here; this is planned by its description", name);
  }
  return outline_dataset(name, split);
}

std::shared_ptr<const Dataset> open_dataset(std::string_view name, std::string_view split) {
  check_split(name, split);
  load_base_spec(name);  // finds a circle of bases before the recursion below would follow it
  const DatasetSpec spec = load_dataset_spec(name);
  const std::string part(split);
  if (spec.base.empty()) return open_own(spec, part);
  return derived(spec, open_dataset(spec.base, split), part);
}

std::string DatasetStatus::where() const {
  if (generated) return "made when it is opened";
  if (found()) return folder.string();
  if (fetchable) return fmt::format("not here; moesaic data fetch {}", name);
  return fmt::format("not here; put it or a link at {}", searched.front().string());
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
    status.classes = described_classes(spec);
    status.fetchable = !base.urls.empty();
    status.generated = base.generated();
    if (status.generated) {
      statuses.push_back(std::move(status));
      continue;
    }
    status.folder = find_folder(base);
    status.searched = search_folders(base);
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<FileVerification> verify_dataset(std::string_view name) {
  const DatasetSpec described = load_base_spec(name);
  if (described.generated()) {
    fail_usage("dataset '{}' is generated when it is opened: it has no files", described.name);
  }
  if (described.files.empty()) {
    if (find_folder(described, "train").empty() && find_folder(described, "test").empty()) {
      fail_missing(described);
    }
    return verify_folders(described);
  }
  const fs::path folder = find_any_folder(described);
  if (folder.empty()) fail_missing(described);
  const DatasetSpec spec = with_recorded_hashes(described, folder);
  std::vector<FileVerification> results;
  for (const auto& [role, file] : spec.files) {
    FileVerification result{file.name, find_in(folder, file), ""};
    if (result.path.empty()) {
      result.problem = fmt::format("{}: no such file", (folder / file.name).string());
    } else {
      result.problem = compare_file(result.path, file);
      if (result.ok() && file.sha256.empty()) {
        result.problem = unproven_problem(spec, result.path, file);
      }
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace moesaic
