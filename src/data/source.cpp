// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/data/views.h"

namespace moesaic {
namespace {

constexpr int kMaxSubsetDepth = 8;

/// Name of the split that holds all training files, with or without held-out ones.
constexpr const char* kTrainAndValidation = "train+validation";

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the folder with every file, or else the first one with any.
fs::path find_any_folder(const DatasetSpec& spec) {
  if (fs::path folder = spec.find_folder(); !folder.empty()) return folder;
  for (const fs::path& folder : spec.search_folders()) {
    for (const auto& [role, file] : spec.files) {
      if (!find_in(folder, file).empty()) return folder;
    }
  }
  return {};
}

/// A dataset with metadata but without pixels.
class MetadataDataset final : public Dataset {
 public:
  MetadataDataset(DatasetInfo info, int64_t size) : Dataset(std::move(info)), size_(size) {}
  int64_t size() const override { return size_; }
  /// Classes in turn, as if all had as many examples: subsets of classes are planned by them.
  int64_t label(int64_t index) const override {
    if (info().classes.empty()) fail_unreadable();
    return index % static_cast<int64_t>(info().classes.size());
  }
  void oriented_image(int64_t, std::optional<bool>, uint8_t*) const override { fail_unreadable(); }

 private:
  [[noreturn]] void fail_unreadable() const {
    fail("dataset '{}': opened without its files, so it has no images", info().name);
  }
  int64_t size_;
};

/// Verifies what the format finds in the folders of the splits; a missing split does not fail the
/// others.
std::vector<FileVerification> verify_undescribed(const DatasetSpec& spec) {
  std::vector<FileVerification> results;
  bool any = false;
  for (const std::string& split : spec.stored_splits()) {
    const fs::path folder = spec.find_folder(split);
    if (folder.empty()) {
      const auto part = first_missing(spec, split);
      results.push_back({split,
                         {},
                         fmt::format("{} not found in {}", part ? text_of(*part) : split,
                                     spec.search_folders().front().string())});
      continue;
    }
    any = true;
    try {
      std::ranges::move(format_of(spec).verify(spec, split, folder), std::back_inserter(results));
    } catch (const Error& error) {
      results.push_back({split, folder, error.what()});
    }
  }
  if (!any) fail_missing(spec);
  return results;
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
      try {
        result.problem = compare_file(result.path, file);
      } catch (const IoError& error) {
        result.problem = error.what();  // The other files are looked at all the same.
      }
      if (result.ok() && file.sha256.empty()) {
        result.problem = format_of(spec).verify_file(spec, result.path, file);
        result.unverified = "no SHA-256 is described; size and labels are right";
        if (spec.archive) {  // It was put there by hand.
          result.unverified = fmt::format(
              "size and labels are right, but '{}' did not unpack the file, so the pixels may "
              "differ from the official ones",
              fetch_command(spec.name));
        }
      }
    }
    results.push_back(std::move(result));
  }
  return results;
}

/// Opens a stored split of a description without base.
std::shared_ptr<const Dataset> open_stored(DatasetSpec spec, const std::string& split) {
  const DatasetFormat& format = format_of(spec);
  fs::path folder;
  if (!format.is_generated) {
    folder = spec.find_folder(split);
    const bool fetched = format.fetch && !spec.urls.empty();
    if (folder.empty() && !fetched) fail_missing(spec, split);
    if (folder.empty()) folder = spec.fetch_folder();
    spec = with_recorded_hashes(std::move(spec), folder);
  }
  return format.open(spec, info_from_spec(spec, split), folder);
}

/// Returns the metadata that a description contains of a split, completed by its format.
DatasetInfo described_info(const DatasetSpec& spec, const std::string& split) {
  DatasetInfo info = info_from_spec(spec, split);
  info.channels = static_cast<int64_t>(spec.mean.size());
  format_of(spec).fill_info(spec, info);
  return info;
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;  // Whoever opens one that cannot be looked up says so.
  const fs::path inner = fs::weakly_canonical(fs::absolute(path), error);
  const fs::path outer = fs::canonical(folder, error);
  if (error) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

/// A split of a dataset, and which of its stored files it has.
struct DatasetSource::Request {
  std::string split;
  double validation = 0.0;  ///< Held-out fraction of the training files.

  bool all_training_files() const { return split == kTrainAndValidation; }
  /// Returns the stored split that contains the requested one.
  std::string stored() const {
    const bool held_out = validation > 0.0 && split == "validation";
    return held_out || all_training_files() ? "train" : split;
  }
  /// Returns whether the stored split has more images than requested.
  bool cuts() const { return validation > 0.0 && (split == "train" || split == "validation"); }
};

DatasetSource::DatasetSource(std::string_view asked, std::string_view name, int depth)
    : name_(name) {
  if (depth > kMaxSubsetDepth) fail_usage("dataset '{}': its bases are circular", asked);
  spec_ = load_dataset_spec(name);
  const auto part = [&](const std::string& of) {
    return std::shared_ptr<const DatasetSource>(new DatasetSource(asked, of, depth + 1));
  };
  if (!spec_.base.empty()) base_ = part(spec_.base);
  if (spec_.backdrop) backdrops_ = part(spec_.backdrop->images);
  if (base_ && spec_.validation.value_or(0.0) > 0.0 &&
      contains(base().stored_splits(), "validation")) {
    fail_usage("dataset '{}': its base '{}' has a validation split already: leave 'validation' out",
               asked, spec_.base);
  }
}

std::vector<DatasetSpec> DatasetSource::files() const {
  std::vector<DatasetSpec> found = base_ ? base_->files() : std::vector{spec_};
  if (!backdrops_) return found;
  for (DatasetSpec& spec : backdrops_->files()) found.push_back(std::move(spec));
  return found;
}

double DatasetSource::validation() const {
  return !spec_.validation && base_ ? base_->validation() : spec_.validation.value_or(0.0);
}

std::vector<std::string> DatasetSource::splits() const {
  const std::vector<std::string> stored = base().stored_splits();
  std::vector<std::string> splits;
  for (const char* split : {"train", "validation", "test"}) {
    const bool held_out = validation() > 0.0 && std::string_view(split) == "validation";
    if (held_out || contains(stored, split)) splits.emplace_back(split);
  }
  return splits;
}

DatasetSource::Request DatasetSource::request(std::string_view split) const {
  static const std::vector<std::string> known = {"train", "validation", "test",
                                                 kTrainAndValidation};
  if (!contains(known, split)) {
    fail_usage("dataset '{}': unknown split '{}'; {}", name_, split, did_you_mean(split, known));
  }
  const std::vector<std::string> here = splits();
  const bool all = split == kTrainAndValidation && !contains(base().stored_splits(), "validation");
  if (!all && !contains(here, split)) {
    fail_usage("dataset '{}' has no {} split: its splits are {}", name_, split,
               fmt::join(here, " and "));
  }
  return {all && validation() == 0.0 ? "train" : std::string(split), validation()};
}

int64_t DatasetSource::num_classes() const {
  if (spec_.rotate) return spec_.rotate->joint ? 2 * base_->num_classes() : 2;
  if (spec_.mosaic) return static_cast<int64_t>(spec_.mosaic->deciding.size());
  if (!spec_.keep_classes.empty()) return static_cast<int64_t>(spec_.keep_classes.size());
  if (base_) return base_->num_classes();
  return static_cast<int64_t>(described_info(spec_, "train").classes.size());
}

const DatasetSource& DatasetSource::checked_source(const DatasetSource& part,
                                                   std::optional<bool> applies_exif) const {
  if (applies_exif && !part.base_ && !backdrops_ && !format_of(part.spec_).has_exif) {
    fail_usage("dataset '{}': exif_orientation is for photos, and '{}' has none", spec_.name,
               part.name_);
  }
  return part;
}

std::shared_ptr<const Dataset> DatasetSource::derive(std::shared_ptr<const Dataset> base,
                                                     const Request& request, MosaicContent content,
                                                     std::optional<bool> applies_exif) const {
  const std::string &name = spec_.name, &text = spec_.description;
  if (spec_.rotate) return make_rotated_pairs(std::move(base), *spec_.rotate, name, text);
  if (spec_.mosaic) return make_mosaic(std::move(base), *spec_.mosaic, content, name, text);
  if (spec_.backdrop) {
    std::shared_ptr<const Dataset> behind;
    if (content == MosaicContent::images) {
      behind = checked_source(*backdrops_, applies_exif)
                   .make(backdrops_->request("train"), content, applies_exif);
    }
    return make_on_backdrops(std::move(base), std::move(behind), *spec_.backdrop, name, text);
  }
  if (!spec_.keep_classes.empty()) {
    return make_class_subset(std::move(base), spec_.keep_classes, name, text);
  }
  if (request.all_training_files() &&
      (spec_.num_first_images.contains("train") || spec_.num_first_images.contains("validation"))) {
    fail_usage("dataset '{}': the {} split cannot be formed from the first images of each split",
               name, request.split);
  }
  const auto first = spec_.num_first_images.find(request.split);
  if (first == spec_.num_first_images.end()) return make_renamed(std::move(base), name, text);
  return make_first_n(std::move(base), first->second, name, text);
}

std::shared_ptr<const Dataset> DatasetSource::make(const Request& request, MosaicContent content,
                                                   std::optional<bool> applies_exif) const {
  if (!applies_exif) applies_exif = spec_.exif_orientation;
  if (base_) {
    return derive(checked_source(*base_, applies_exif).make(request, content, applies_exif),
                  request, content, applies_exif);
  }
  DatasetSpec spec = spec_;
  spec.exif_orientation = applies_exif;
  spec.validation = request.validation;  // A dataset derived from this one may have its own.
  const std::string stored = request.stored();
  if (content == MosaicContent::images) {
    const bool is_sorted_by_class = format_of(spec).is_sorted_by_class;
    auto data = open_stored(std::move(spec), stored);
    if (!request.cuts()) return data;
    return hold_out(std::move(data), request.validation, request.split, is_sorted_by_class);
  }
  const auto images = spec.num_images.find(stored);
  DatasetInfo info = described_info(spec, request.split);
  if (images == spec.num_images.end() || (info.classes.empty() && info.targets.empty())) {
    fail_usage("dataset '{}': its description does not state the numbers of images and classes",
               spec.name);
  }
  int64_t size = images->second;
  if (request.cuts()) {
    const int64_t train = num_training_examples(size, request.validation);
    size = request.split == "train" ? train : size - train;
  }
  return std::make_shared<MetadataDataset>(std::move(info), size);
}

std::shared_ptr<const Dataset> DatasetSource::open(std::string_view split) const {
  return make(request(split), MosaicContent::images, {});
}

std::shared_ptr<const Dataset> DatasetSource::open_metadata(std::string_view split) const {
  return make(request(split), MosaicContent::metadata, {});
}

bool DatasetSource::has_metadata(std::string_view split) const {
  return base().num_images.contains(request(split).stored());
}

std::string DatasetSource::missing_files(std::string_view split) const {
  std::string stored = request(split).stored(), of;
  for (const DatasetSpec& spec : files()) {
    if (!spec.is_generated() && spec.find_folder(stored).empty()) {
      const auto part = first_missing(spec, stored);
      return part ? text_of(*part) + of + " is" : "its files are";
    }
    stored = "train";  // All after the base's are backdrops.
    of = " of its backdrops";
  }
  return "";
}

std::vector<FileVerification> DatasetSource::verify() const {
  std::vector<DatasetSpec> specs = files();
  std::erase_if(specs, [](const DatasetSpec& one) { return one.is_generated(); });
  if (specs.empty()) {
    fail_usage("dataset '{}' is generated when it is opened: it has no files", base().name);
  }
  std::vector<FileVerification> results;
  for (const DatasetSpec& spec : specs) {
    std::ranges::move(spec.files.empty() ? verify_undescribed(spec) : verify_described(spec),
                      std::back_inserter(results));
  }
  const bool sound = std::ranges::all_of(results, [](const auto& file) { return file.ok(); });
  const bool opened_whole = base().files.empty() && !base_ && validation() == 0.0;
  if (!sound || opened_whole) return results;
  for (const std::string& split : splits()) {
    try {
      open(split);
    } catch (const Error& error) {
      results.push_back({split, {}, error.what()});
    }
  }
  return results;
}

DatasetSpec DatasetSource::spec_to_fetch() const {
  const std::vector<DatasetSpec> specs = files();
  const auto absent = std::ranges::find_if(specs, [](const DatasetSpec& one) {
    return !one.is_generated() && one.find_folder().empty();
  });
  return absent == specs.end() ? specs.front() : *absent;
}

std::string DatasetSource::where() const {
  const DatasetSpec spec = spec_to_fetch();
  if (spec.is_generated()) return "generated when opened";
  if (const fs::path folder = spec.find_folder(); !folder.empty()) return folder.string();
  if (!spec.urls.empty()) return "not here; " + fetch_command(spec.name);
  return fmt::format("not here; place or link it at {}", spec.search_folders().front().string());
}

std::shared_ptr<const Dataset> PlannedDatasets::operator()(std::string_view name,
                                                           std::string_view split) {
  const DatasetSource source(name);
  const std::string missing = source.missing_files(split);
  if (missing.empty() || !source.has_metadata(split)) return source.open(split);
  if (absent_.emplace(name).second) {
    log_warning("dataset '{}': {} not here; the plan uses the description{}", name, missing,
                source.spec().keep_classes.empty() ? "" : ", as if all classes had as many images");
  }
  return source.open_metadata(split);
}

void check_outside_images(const fs::path& out, const std::string& data) {
  if (out.empty() || !has_spec(data)) return;  // Nothing is written, or nothing is known.
  for (const DatasetSpec& spec : DatasetSource(data).files()) {
    for (const std::string& split : spec.stored_splits()) {
      const fs::path folder = spec.find_folder(split);
      if (folder.empty()) continue;
      for (const RequiredPath& part : format_of(spec).required_paths(spec, split)) {
        const fs::path images = folder / part.path;
        if (!part.is_folder || !lies_in(out, images)) continue;
        fail_usage(
            "'{0}' lies in '{1}', where the {2} images of dataset '{3}' are; choose a folder "
            "outside '{1}'",
            out.string(), images.lexically_normal().string(), split, data);
      }
    }
  }
}

void check_outside_trained_images(const fs::path& out, const Json& config) {
  const auto data = config.find("data");
  if (data != config.end() && data->is_string()) {
    check_outside_images(out, data->get<std::string>());
  }
}

}  // namespace moesaic
