// SPDX-License-Identifier: Apache-2.0
// Opens the dataset of a description: finds the files, verifies and reads them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/path.h"
#include "moesaic/data/catalog.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/derived.h"
#include "moesaic/data/format.h"
#include "moesaic/data/image_walk.h"
#include "moesaic/data/views.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

/// Name of the split that holds all training files, with or without held-out ones.
constexpr std::string_view kTrainAndValidation = "train+validation";

const std::vector<std::string>& known_splits() {
  static const std::vector<std::string> names = {"train", "validation", "test",
                                                 std::string(kTrainAndValidation)};
  return names;
}

/// Returns the first part of a split that the folder lacks which has others, or else the first one;
/// nothing for files that are described otherwise.
std::optional<DatasetPart> first_missing(const DatasetSpec& spec, const std::string& split) {
  const std::vector<DatasetPart> parts = format_of(spec).parts(spec, split);
  for (const fs::path& folder : search_folders(spec)) {
    const auto here = [&](const DatasetPart& part) { return path_exists(folder / part.path); };
    const auto missing = std::find_if_not(parts.begin(), parts.end(), here);
    if (missing != parts.end() && std::any_of(parts.begin(), parts.end(), here)) return *missing;
  }
  return parts.empty() ? std::nullopt : std::optional(parts.front());
}

/// Returns "file 'x'" or "folder 'x'".
std::string text_of(const DatasetPart& part) {
  return fmt::format("{} '{}'", part.is_folder ? "folder" : "file", part.path);
}

/// Returns which splits can be read where another one cannot, as a part of a line.
std::string splits_here(const DatasetSpec& spec) {
  std::vector<std::string> splits = stored_splits(spec);
  std::erase_if(splits, [&](const std::string& one) { return find_folder(spec, one).empty(); });
  return splits.empty() ? ""
                        : fmt::format("; its splits that are here: {}", fmt::join(splits, ", "));
}

/// Returns which folder may be meant by one that is not there, as a part of a line.
std::string where_instead(const fs::path& folder, const std::string& part) {
  for (const std::string& name : list_images(folder).folders) {
    const fs::path deeper = folder / name;
    if (is_folder(deeper / part)) return fmt::format(", but in '{}/'", deeper.string());
  }
  return nearest_sibling(folder / part, Sibling::name);
}

/// Returns how the files of a data set are fetched; one of somebody's own description has no name
/// that the program knows.
std::string fetch_command(const std::string& name) {
  const std::vector<std::string> known = dataset_names();
  const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
  return "moesaic data fetch " + (is_known ? name : "DESCRIPTION.json");
}

/// Throws Error that says how to get files that are in none of the searched folders.
[[noreturn]] void fail_missing(const DatasetSpec& spec, const std::string& split = {}) {
  std::vector<std::string> folders;
  for (const fs::path& folder : search_folders(spec)) folders.push_back(folder.string());
  std::string what = "files", how = "put them or a link there";
  const std::string wanted = split.empty() ? "train" : split;
  const std::vector<DatasetPart> train = format_of(spec).parts(spec, "train");
  if (spec.is_path() && !train.empty() && !path_exists(spec.name + "/" + train[0].path)) {
    fail(
        "dataset '{}': folder '{}' not found in it{}; images lie in {}/<class>, and in "
        "test/<class>, val/<class>, validation/<class> or valid/<class>, or all in the folders of "
        "two classes or more",
        spec.name, train[0].path, where_instead(spec.name, train[0].path), train[0].path);
  }
  if (const auto part = first_missing(spec, wanted)) {
    what = text_of(*part);
    how = "put it or a link there";
    if (spec.is_path() && wanted == "test") {
      folders.back() += nearest_sibling(fs::path(spec.name) / part->path, Sibling::name);
      how += ", or name it 'test', 'validation' or 'valid'";
    }
  }
  if (!spec.files.empty() || (format_of(spec).fetch && !spec.urls.empty())) {
    how = fmt::format("run '{}'", fetch_command(spec.name));
  }
  const std::string package =
      spec.debian_package.empty() ? "" : fmt::format(" or install {}", spec.debian_package);
  fail("dataset '{}': {} not found in {}; {}{}{}", spec.name, what, fmt::join(folders, ", "), how,
       package, split.empty() ? "" : splits_here(spec));
}

/// Returns the folder with every file, or else the first one with any.
fs::path find_any_folder(const DatasetSpec& spec) {
  if (fs::path folder = find_folder(spec); !folder.empty()) return folder;
  for (const fs::path& folder : search_folders(spec)) {
    for (const auto& [role, file] : spec.files) {
      if (!find_in(folder, file).empty()) return folder;
    }
  }
  return {};
}

/// A dataset with metadata but without pixels.
class Outline final : public Dataset {
 public:
  Outline(DatasetInfo info, int64_t size) : Dataset(std::move(info)), size_(size) {}
  int64_t size() const override { return size_; }
  /// Classes in turn, as if all had as many examples: subsets of classes are planned by them.
  int64_t label(int64_t index) const override {
    if (info().classes.empty()) fail_unreadable();
    return index % static_cast<int64_t>(info().classes.size());
  }
  void oriented_image(int64_t, std::optional<bool>, uint8_t*) const override { fail_unreadable(); }

 private:
  [[noreturn]] void fail_unreadable() const {
    fail("dataset '{}': this is its outline, without images", info().name);
  }
  int64_t size_;
};

/// Throws Error (usage) for a split that is unknown or that this dataset lacks.
void check_split(std::string_view name, std::string_view split) {
  const std::vector<std::string>& known = known_splits();
  if (std::find(known.begin(), known.end(), split) == known.end()) {
    fail_usage("dataset '{}': unknown split '{}'; {}", name, split, did_you_mean(split, known));
  }
  const std::vector<std::string> stored = stored_splits(load_base_spec(name));
  const bool all = split == kTrainAndValidation &&
                   std::find(stored.begin(), stored.end(), "validation") == stored.end();
  const std::vector<std::string> splits = dataset_splits(name);
  if (all || std::find(splits.begin(), splits.end(), split) != splits.end()) return;
  fail_usage("dataset '{}' has no {} split: its splits are {}", name, split,
             fmt::join(splits, " and "));
}

/// A split of a dataset, with the derivations of the dataset.
struct SplitRequest {
  std::string split;
  double validation = 0.0;  ///< Held-out fraction of the training files.

  bool of_training_files() const { return validation > 0.0 && split == "validation"; }
  bool all_training_files() const { return split == kTrainAndValidation; }
  /// Returns the stored split that contains the requested one.
  std::string stored() const {
    return of_training_files() || all_training_files() ? "train" : split;
  }
  /// Returns whether the stored split has more images than requested.
  bool cuts() const { return validation > 0.0 && (split == "train" || split == "validation"); }
};

SplitRequest request(std::string_view name, std::string_view split) {
  check_split(name, split);
  const double validation = validation_fraction(name);
  const bool all = validation == 0.0 && split == kTrainAndValidation;
  return {all ? "train" : std::string(split), validation};
}

std::shared_ptr<const Dataset> open_own(const DatasetSpec& described, const SplitRequest& request) {
  const DatasetFormat& format = format_of(described);
  const std::string stored = request.stored();
  fs::path folder;
  DatasetSpec spec = described;
  if (!format.generated) {
    folder = find_folder(described, stored);
    const bool fetched = format.fetch && !described.urls.empty();
    if (folder.empty() && !fetched) fail_missing(described, stored);
    if (folder.empty()) folder = fetch_folder(described);
    spec = with_recorded_hashes(described, folder);
  }
  auto data = format.open(spec, described_info(spec, stored), folder);
  if (!request.cuts()) return data;
  return hold_out(std::move(data), request.validation, request.split, format.sorted_by_class);
}

int64_t described_classes(const DatasetSpec& spec) {
  if (spec.rotate) return 2;
  if (spec.mosaic) return static_cast<int64_t>(spec.mosaic->deciding.size());
  if (!spec.keep_classes.empty()) return static_cast<int64_t>(spec.keep_classes.size());
  if (!spec.base.empty()) return described_classes(load_dataset_spec(spec.base));
  return format_of(spec).class_count(spec);
}

[[noreturn]] void fail_outline(const DatasetSpec& spec) {
  fail_usage("dataset '{}': its description does not tell how many images or classes there are",
             spec.name);
}

std::shared_ptr<const Dataset> outline_own(const DatasetSpec& spec, const SplitRequest& request) {
  const auto images = spec.images.find(request.stored());
  if (images == spec.images.end()) fail_outline(spec);
  DatasetInfo info = described_info(spec, request.split);
  info.channels = static_cast<int64_t>(spec.mean.size());
  format_of(spec).outline(spec, info);
  if (info.classes.empty() && info.targets.empty()) fail_outline(spec);
  int64_t size = images->second;
  if (request.cuts()) {
    const int64_t train = training_count(size, request.validation);
    size = request.split == "train" ? train : size - train;
  }
  return std::make_shared<Outline>(std::move(info), size);
}

/// Returns whether the description gives the size, that of some classes by their number.
bool tells_size(const DatasetSpec& spec, const std::string& stored) {
  if (spec.base.empty()) return spec.images.contains(stored);
  return tells_size(load_dataset_spec(spec.base), stored);
}

/// Returns a description that `spec` is made of, whose photos are turned as `spec` says.
DatasetSpec part_of(const DatasetSpec& spec, const std::string& name) {
  DatasetSpec part = load_dataset_spec(name);
  if (!spec.exif_orientation) return part;
  part.exif_orientation = spec.exif_orientation;
  if (part.base.empty() && !spec.backdrop && !format_of(part).photos) {
    fail_usage("dataset '{}': exif_orientation is for photos, which '{}' has none of", spec.name,
               name);
  }
  return part;
}

std::shared_ptr<const Dataset> open_described(const DatasetSpec& spec, const SplitRequest& request);

/// Returns the dataset that `spec` derives from its base.
std::shared_ptr<const Dataset> derived(const DatasetSpec& spec, std::shared_ptr<const Dataset> base,
                                       const SplitRequest& request, MosaicOf of) {
  if (spec.rotate) {
    return make_rotated_pairs(std::move(base), *spec.rotate, spec.name, spec.description);
  }
  if (spec.mosaic) {
    return make_mosaic(std::move(base), *spec.mosaic, of, spec.name, spec.description);
  }
  if (spec.backdrop) {
    const std::string& images = spec.backdrop->images;
    auto backdrops = of == MosaicOf::outline ? nullptr
                                             : open_described(part_of(spec, images),
                                                              ::moesaic::request(images, "train"));
    return make_on_backdrops(std::move(base), std::move(backdrops), *spec.backdrop, spec.name,
                             spec.description);
  }
  if (!spec.keep_classes.empty()) {
    return make_class_subset(std::move(base), spec.keep_classes, spec.name, spec.description);
  }
  if (request.all_training_files() &&
      (spec.first.contains("train") || spec.first.contains("validation"))) {
    fail_usage("dataset '{}' has no {} split: the first images of each are no part of the whole",
               spec.name, request.split);
  }
  const auto first = spec.first.find(request.split);
  if (first == spec.first.end()) {
    return make_renamed(std::move(base), spec.name, spec.description);
  }
  return make_first_of(std::move(base), first->second, spec.name, spec.description);
}

std::shared_ptr<const Dataset> open_described(const DatasetSpec& spec,
                                              const SplitRequest& request) {
  if (spec.base.empty()) return open_own(spec, request);
  return derived(spec, open_described(part_of(spec, spec.base), request), request,
                 MosaicOf::images);
}

std::shared_ptr<const Dataset> outline_described(const DatasetSpec& spec,
                                                 const SplitRequest& request) {
  if (spec.base.empty()) return outline_own(spec, request);
  return derived(spec, outline_described(part_of(spec, spec.base), request), request,
                 MosaicOf::outline);
}

/// Opens all splits; returns those that cannot be opened.
std::vector<FileVerification> verify_opening(std::string_view name) {
  std::vector<FileVerification> results;
  for (const std::string& split : dataset_splits(name)) {
    try {
      open_dataset(name, split);
    } catch (const Error& error) {
      results.push_back({split, {}, error.what()});
    }
  }
  return results;
}

/// Verifies the stored splits; a missing split does not fail the others.
std::vector<FileVerification> verify_stored(const DatasetSpec& spec) {
  std::vector<FileVerification> results;
  for (const std::string& split : stored_splits(spec)) {
    const fs::path folder = find_folder(spec, split);
    if (folder.empty()) {
      const auto part = first_missing(spec, split);
      results.push_back({split,
                         {},
                         fmt::format("{} not found in {}", part ? text_of(*part) : split,
                                     search_folders(spec).front().string())});
      continue;
    }
    try {
      for (FileVerification& file : format_of(spec).verify(spec, split, folder)) {
        results.push_back(std::move(file));
      }
    } catch (const Error& error) {
      results.push_back({split, folder, error.what()});
    }
  }
  return results;
}

}  // namespace

std::vector<std::string> dataset_splits(std::string_view name) {
  const std::vector<std::string> stored = stored_splits(load_base_spec(name));
  const bool held_out = validation_fraction(name) > 0.0;
  std::vector<std::string> splits;
  for (const char* split : {"train", "validation", "test"}) {
    const bool is_stored = std::find(stored.begin(), stored.end(), split) != stored.end();
    if (is_stored || (held_out && std::string_view(split) == "validation")) splits.push_back(split);
  }
  return splits;
}

std::shared_ptr<const Dataset> outline_dataset(std::string_view name, std::string_view split) {
  return outline_described(load_dataset_spec(name), request(name, split));
}

namespace {

/// Returns what of a split is not here, "" where nothing is missing.
std::string missing_of(std::string_view name, std::string_view split) {
  std::string stored = request(name, split).stored(), of;
  for (const DatasetSpec& files : file_specs(name)) {
    if (!files.generated() && find_folder(files, stored).empty()) {
      const auto part = first_missing(files, stored);
      return part ? text_of(*part) + of + " is" : "its files are";
    }
    stored = "train";  // All after the base's are backdrops.
    of = " of its backdrops";
  }
  return "";
}

}  // namespace

bool split_is_here(std::string_view name, std::string_view split) {
  return missing_of(name, split).empty();
}

std::shared_ptr<const Dataset> PlannedDatasets::operator()(std::string_view name,
                                                           std::string_view split) {
  const SplitRequest wanted = request(name, split);
  const DatasetSpec spec = load_dataset_spec(name);
  const std::string missing = missing_of(name, split);
  if (missing.empty() || !tells_size(spec, wanted.stored())) return open_dataset(name, split);
  if (absent_.emplace(name).second) {
    log_warning("dataset '{}': {} not here; this is planned by its description{}", name, missing,
                spec.keep_classes.empty() ? "" : ", as if all classes had as many images");
  }
  return outline_dataset(name, split);
}

std::shared_ptr<const Dataset> open_dataset(std::string_view name, std::string_view split) {
  return open_described(load_dataset_spec(name), request(name, split));
}

std::string DatasetStatus::where() const {
  if (generated) return "made when it is opened";
  if (found()) return folder.string();
  if (fetchable) return "not here; " + fetch_command(fetched_as);
  return fmt::format("not here; put it or a link at {}", searched.front().string());
}

std::vector<DatasetStatus> dataset_statuses() {
  std::vector<DatasetStatus> statuses;
  for (const std::string& name : dataset_names()) {
    const DatasetSpec spec = load_dataset_spec(name);
    const std::vector<DatasetSpec> files = file_specs(name);
    const auto missing = std::find_if(files.begin(), files.end(), [](const DatasetSpec& one) {
      return !one.generated() && find_folder(one).empty();
    });
    const DatasetSpec& base = missing == files.end() ? files.front() : *missing;
    DatasetStatus status;
    status.name = spec.name;
    status.description = spec.description;
    status.base = spec.base;
    status.fetched_as = base.name;
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

namespace {

/// Returns what is to be said of a file of an archive that was put there by hand.
std::string unproven(const DatasetSpec& spec) {
  return fmt::format(
      "size and labels are right, but it was not unpacked by '{}': nothing says that its pixels "
      "are the official ones",
      fetch_command(spec.name));
}

/// Verifies the files of a description that names them.
std::vector<FileVerification> verify_described(const DatasetSpec& described) {
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
        result.problem = format_of(spec).verify_file(spec, result.path, file);
        if (spec.archive) result.doubt = unproven(spec);
      }
    }
    results.push_back(std::move(result));
  }
  return results;
}

/// Verifies what the format finds in the folders of the splits.
std::vector<FileVerification> verify_undescribed(const DatasetSpec& spec) {
  const std::vector<std::string> splits = stored_splits(spec);
  const auto absent = [&](const std::string& split) { return find_folder(spec, split).empty(); };
  if (std::all_of(splits.begin(), splits.end(), absent)) fail_missing(spec);
  return verify_stored(spec);
}

}  // namespace

std::vector<FileVerification> verify_dataset(std::string_view name) {
  std::vector<DatasetSpec> specs = file_specs(name);
  const DatasetSpec base = specs.front();
  std::erase_if(specs, [](const DatasetSpec& one) { return one.generated(); });
  if (specs.empty()) {
    fail_usage("dataset '{}' is generated when it is opened: it has no files", base.name);
  }
  std::vector<FileVerification> results;
  for (const DatasetSpec& spec : specs) {
    for (FileVerification& file :
         spec.files.empty() ? verify_undescribed(spec) : verify_described(spec)) {
      results.push_back(std::move(file));
    }
  }
  const bool sound =
      std::all_of(results.begin(), results.end(), [](const auto& file) { return file.ok(); });
  const bool opened_whole = base.files.empty() && load_dataset_spec(name).base.empty() &&
                            validation_fraction(name) == 0.0;
  if (!sound || opened_whole) return results;
  for (FileVerification& split : verify_opening(name)) results.push_back(std::move(split));
  return results;
}

}  // namespace moesaic
