// SPDX-License-Identifier: Apache-2.0
// Folders of images, one for each class: <split>/<class>/<image>.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "../image_files.h"
#include "checks.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/text.h"
#include "moesaic/data/image_walk.h"

namespace moesaic {
namespace {

struct ImageFolderSettings {
  int64_t num_classes = 0;
  std::map<std::string, std::string> splits;
  bool listed = false;       ///< Whether the folder was there to find splits in; no setting.
  bool found = false;        ///< Whether the test split was to be found there; no setting.
  bool undescribed = false;  ///< Whether mean and std are those of photographs; no setting.
};
void describe(auto& f, ImageFolderSettings& c) {
  f("num_classes", c.num_classes, "required number of classes; 0: any", at_least(0),
    renamed_from("class_count"));
  f("splits", c.splits,
    "folder of each split; empty or missing: train; test, or else val, as test split; another one "
    "of validation, val and valid as validation split");
}

const ImageFolderSettings& settings_of(const DatasetSpec& spec) {
  return spec.format.as<ImageFolderSettings>();
}

ConfigProblem check_image_folder(const DatasetSpec& spec) {
  return first_problem(
      {no_files_problem(spec), classes_problem(spec, settings_of(spec).num_classes),
       unknown_split(spec.num_images, "num_images"),
       unknown_split(settings_of(spec).splits, "splits"), open_channels_problem(spec)});
}

bool holds_out(const DatasetSpec& spec) {
  return spec.validation.value_or(0.0) > 0.0;
}

std::vector<std::string> splits_image_folder(const DatasetSpec& spec) {
  const ImageFolderSettings& settings = settings_of(spec);
  const bool validation = settings.splits.contains("validation");
  std::vector<std::string> splits = {"train"};
  if (validation) splits.emplace_back("validation");
  // A folder with images to validate with may have none to test with.
  const bool untested = settings.listed && (holds_out(spec) || validation);
  if (!untested || settings.splits.contains("test")) splits.emplace_back("test");
  return splits;
}

std::string source_image_folder(const DatasetSpec& spec, const std::string& split) {
  const auto& folders = settings_of(spec).splits;
  if (const auto found = folders.find(split); found != folders.end()) return found->second;
  return split == "train" ? "train" : "val";
}

void fill_image_folder_info(const DatasetSpec& spec, DatasetInfo& info) {
  if (spec.classes.empty()) count_classes(info, settings_of(spec).num_classes);
}

/// Folders of classes by where they are without links, with the names that they are read by.
using Places = std::map<fs::path, fs::path>;

/// What lies in the folder of a split.
struct SplitListing {
  fs::path part;
  ImageListing listing;
  /// Folders that are no links, and that another split reads too.
  std::vector<std::string> shared;
};

std::string link_text(const std::string& name, const fs::path& target) {
  return fmt::format("{} -> {}", name, target.string());
}

bool is_link(const ImageListing& listing, const std::string& name) {
  return std::binary_search(listing.links.begin(), listing.links.end(), name);
}

/// Lists a split and adds the folders of its classes to `read`. Links to a folder that is there
/// already are left out; folders come before links, so that each is read by its own name.
SplitListing list_split(const fs::path& part, Places& read) {
  SplitListing split{part, list_images(part), {}};
  ImageListing& listing = split.listing;
  std::vector<std::string> folders = std::exchange(listing.folders, {});
  std::stable_partition(folders.begin(), folders.end(),
                        [&](const std::string& name) { return !is_link(listing, name); });
  for (std::string& name : folders) {
    const auto [place, is_new] = read.emplace(canonical_path(part / name), part / name);
    if (!is_new && is_link(listing, name)) {
      listing.skipped.add(SkipReason::linked, link_text(name, place->second));
      continue;
    }
    if (!is_new) split.shared.push_back(link_text(name, place->second));
    listing.folders.push_back(std::move(name));
  }
  std::sort(listing.folders.begin(), listing.folders.end());
  return split;
}

/// All splits in the order in which they are read: what is trained on is nothing to test with.
struct SplitListings {
  std::map<std::string, SplitListing> splits;
  Places read;
};

SplitListings list_splits(const DatasetSpec& spec, const std::string& wanted,
                          const fs::path& folder) {
  SplitListings all;
  const auto part_of = [&](const std::string& split) {
    return (folder / source_image_folder(spec, split)).lexically_normal();
  };
  for (const char* split : {"train", "validation", "test"}) {
    const fs::path part = part_of(split);
    if (split != wanted) {
      const bool described = settings_of(spec).splits.contains(split);
      if (!described || part == part_of(wanted) || !is_folder(part)) continue;
    }
    all.splits.emplace(split, list_split(part, all.read));
  }
  return all;
}

/// Throws Error for a folder of no images or of other things: wrong use where somebody names it as
/// data, as where it lacks train/.
[[noreturn]] void fail_of_folder(const DatasetSpec& spec, const std::string& what,
                                 const SkippedFiles& skipped = {}) {
  const std::string text = skipped.text();
  throw Error(spec.is_path() ? ErrorKind::usage : ErrorKind::failure,
              text.empty() ? what : what + "; " + text);
}

/// Returns the described classes, else the folders of the training images, common to all splits.
std::vector<std::string> classes_in(const DatasetSpec& spec, const SplitListing& split) {
  if (!spec.classes.empty()) return spec.classes;
  const std::vector<std::string>& classes = split.listing.folders;
  if (classes.empty()) {
    fail_of_folder(spec, split.part.string() + ": it has no folder of a class",
                   split.listing.skipped);
  }
  const int64_t expected = settings_of(spec).num_classes;
  if (expected > 0 && static_cast<int64_t>(classes.size()) != expected) {
    fail("dataset '{}': {} has folders of {}, expected {}", spec.name, split.part.string(),
         count_text(static_cast<int64_t>(classes.size()), "class"), expected);
  }
  return classes;
}

void check_known(const std::vector<std::string>& found, const std::vector<std::string>& classes,
                 const fs::path& part) {
  const std::set<std::string> known(classes.begin(), classes.end());
  for (const std::string& name : found) {
    if (!known.contains(name)) {
      fail("{}: not a class of this dataset; {}", (part / name).string(),
           did_you_mean(name, classes));
    }
  }
}

constexpr std::array kValidationFolders = {"validation", "val", "valid"};

/// Returns which of these folders may be splits whose names are not read as such, as a part of a
/// line. Of folders that are read as classes only names in capitals are doubtful.
std::string misnamed_splits(const fs::path& folder, const std::vector<std::string>& names,
                            bool are_classes) {
  const std::vector<std::string> habits = {"validation", "val", "valid", "test", "train"};
  std::vector<std::string> absent = habits;
  std::erase_if(absent, [&](const std::string& name) { return is_folder(folder / name); });
  std::string text;
  for (const std::string& name : names) {
    if (std::find(habits.begin(), habits.end(), name) != habits.end()) continue;
    const auto meant = nearest(name, absent);
    if (!meant || (are_classes && edit_distance(name, *meant) > 0)) continue;
    text += fmt::format("; '{}' is {}: rename it to '{}' if it is one", name,
                        are_classes ? "read as a class, not as a split" : "not read as a split",
                        *meant);
  }
  return text;
}

/// What lies beside the folders of splits, with names relative to the folder of the dataset.
struct Beside {
  std::vector<std::string> folders, images;
};

Beside beside_splits(const fs::path& folder, const std::map<std::string, std::string>& splits) {
  std::set<fs::path> used, parents;
  std::vector<fs::path> parts;
  for (const auto& [split, name] : splits) {
    const fs::path part = fs::path(name + "/.").lexically_normal().parent_path();
    if (part.is_absolute() || *part.begin() == "..") continue;  // It lies elsewhere.
    parts.push_back(part);
    for (fs::path path = part; !path.empty(); path = path.parent_path()) {
      used.insert(path);
      parents.insert(path.parent_path());
    }
  }
  for (const fs::path& part : parts) parents.erase(part);  // Its folders are classes.
  Beside beside;
  for (const fs::path& parent : parents) {
    if (!is_folder(folder / parent)) continue;
    const ImageListing listing = list_images(folder / parent);
    for (const std::string& name : listing.folders) {
      if (!used.contains(parent / name)) beside.folders.push_back((parent / name).string());
    }
    for (const std::string& name : listing.images) {
      beside.images.push_back((parent / name).string());
    }
  }
  return beside;
}

std::string left_out_text(const Beside& beside) {
  std::vector<std::string> parts;
  if (!beside.folders.empty()) parts.push_back(quoted_names(beside.folders));
  if (const size_t count = beside.images.size(); count > 0) {
    parts.push_back(fmt::format("{} beside the splits ({})",
                                count_text(static_cast<int64_t>(count), "image"),
                                quoted_names(beside.images)));
  }
  return parts.empty() ? "" : fmt::format("; left out: {}", fmt::join(parts, " and "));
}

/// Returns which folders are no splits, as a part of a line.
std::string folders_that_are_no_splits(const DatasetSpec& spec, const fs::path& folder) {
  const ImageFolderSettings& settings = settings_of(spec);
  if (settings.splits.at("train") == ".") {
    return misnamed_splits(folder, list_images(folder).folders, /*are_classes=*/true);
  }
  const Beside beside = beside_splits(folder, settings.splits);
  const bool by_habit = settings.found;
  return left_out_text(beside) +
         (by_habit ? misnamed_splits(folder, beside.folders, /*are_classes=*/false) : "");
}

/// Says which folders are which splits, what follows where none is to validate with, and which
/// folders are none; of described splits only where some are none.
void report_splits(const DatasetSpec& spec, const fs::path& folder) {
  const auto& splits = settings_of(spec).splits;
  const std::string odd_folders = folders_that_are_no_splits(spec, folder);
  if (!settings_of(spec).found && odd_folders.empty()) return;
  const auto named = [&](const char* split) {
    const auto found = splits.find(split);
    const bool here = found != splits.end() && is_folder(folder / found->second);
    return here ? "'" + found->second + "'" : std::string();
  };
  const std::string test = named("test"), validation = named("validation");
  std::string text =
      fmt::format("dataset '{}': trains on {}, tests on {}", spec.name,
                  splits.at("train") == "." ? "its folders, which are classes" : named("train"),
                  test.empty() ? "nothing" : test);
  if (holds_out(spec)) {
    text += fmt::format(
        ", validates on the last {:g} % of each class of the training images (of two images or "
        "more, at least one)",
        100.0 * *spec.validation);
  } else if (!validation.empty()) {
    text += ", validates on " + validation;
  } else {
    text += test.empty() ? ", validates on nothing"
                         : ", validates on nothing, so that 'best' is chosen by the test images";
  }
  log_once(LogLevel::info, text + odd_folders);
}

/// What was found in the folders of the classes.
struct Found {
  FileList files;
  SkippedFiles skipped;
  std::vector<std::string> empty;
};

/// Leaves out the links to images that have their own names in a folder that is read.
void leave_out_links(const fs::path& folder, const Places& read, ImageListing& listing) {
  std::erase_if(listing.images, [&](const std::string& name) {
    if (!is_link(listing, name)) return false;
    const fs::path target = canonical_path(folder / name);
    const auto place = read.find(target.parent_path());
    const fs::path file = target.filename();
    if (place == read.end() || file.string().starts_with('.') || !has_image_name(file)) {
      return false;
    }
    listing.skipped.add(SkipReason::linked, link_text(name, place->second / file));
    return true;
  });
}

/// Refuses what is not a class: a run's figures would be its images.
void check_is_class(const DatasetSpec& spec, const fs::path& folder, const ImageListing& listing) {
  const std::string kind = output_folder_kind(listing);
  if (kind.empty()) return;
  fail_of_folder(spec, fmt::format("{}: a folder {}{}, not a class of images; move it out of {}",
                                   folder.string(), kind.starts_with("of ") ? "" : "with ", kind,
                                   folder.parent_path().string()));
}

Found find_files(const DatasetSpec& spec, const std::vector<std::string>& classes,
                 const SplitListing& split, const Places& read) {
  const std::vector<std::string>& folders = split.listing.folders;
  Found found{FileList(split.part), {}, {}};
  for (size_t label = 0; label < classes.size(); ++label) {
    const std::string& name = classes[label];
    ImageListing listing;
    if (std::binary_search(folders.begin(), folders.end(), name)) {
      listing = list_images(split.part / name);
      check_is_class(spec, split.part / name, listing);
      leave_out_links(split.part / name, read, listing);
    }
    if (listing.images.empty()) found.empty.push_back(name);
    const int32_t number = found.files.add_folder(name);
    for (const std::string& file : listing.images) {
      found.files.add(number, file, static_cast<int32_t>(label));
    }
    for (std::string& nested : listing.folders) {
      listing.skipped.add(SkipReason::nested, std::move(nested));
    }
    found.skipped.add(name, listing.skipped);
  }
  return found;
}

std::shared_ptr<const Dataset> open_image_folder(const DatasetSpec& spec, DatasetInfo info,
                                                 const fs::path& folder) {
  const SplitListings all = list_splits(spec, info.split, folder);
  const SplitListing& split = all.splits.at(info.split);
  const fs::path& part = split.part;
  const auto train = all.splits.find("train");
  info.classes = classes_in(spec, train == all.splits.end() ? split : train->second);
  info.channels = static_cast<int64_t>(info.mean.size());
  info.has_flexible_channels = settings_of(spec).undescribed;
  check_known(split.listing.folders, info.classes, part);
  if (train != all.splits.end()) {  // Folders that this split lacks are classes all the same.
    const SplitListing& other = train->second;
    for (const std::string& name : other.listing.folders) {
      if (std::ranges::binary_search(split.listing.folders, name)) continue;
      ImageListing listing;
      try {
        listing = list_images(other.part / name);
      } catch (const Error&) {
        continue;  // Only training reads it.
      }
      check_is_class(spec, other.part / name, listing);
    }
  }
  Found found = find_files(spec, info.classes, split, all.read);
  for (const std::string& image : split.listing.images) {
    found.skipped.add(SkipReason::beside, image);
  }
  found.skipped.add("", split.listing.skipped);
  const std::string skipped = found.skipped.text();
  if (found.files.size() == 0) {
    fail_of_folder(spec,
                   fmt::format("{}: no images ({}) in its folders", part.string(),
                               fmt::join(image_extensions(), ", ")),
                   found.skipped);
  }
  if (!found.empty.empty()) {
    log_once(LogLevel::warning, fmt::format("dataset '{}': {} in {} without images: {}", info.name,
                                            count_text(std::ssize(found.empty), "class"),
                                            part.string(), quoted_names(found.empty)));
  }
  if (!skipped.empty()) {
    log_once(LogLevel::warning,
             fmt::format("dataset '{}': in {} {}", info.name, part.string(), skipped));
  }
  if (!split.shared.empty()) {
    log_once(LogLevel::warning,
             fmt::format("dataset '{}': {} of {} {} read in another split too, so that results "
                         "of this split are of images seen before: {}",
                         info.name, count_text(std::ssize(split.shared), "folder"), part.string(),
                         split.shared.size() == 1 ? "is" : "are", quoted_names(split.shared)));
  }
  warn_of_twins(info);
  if (info.split == "train") report_splits(spec, folder);
  return std::make_shared<ImageFiles>(std::move(info), std::move(found.files));
}

/// Adds the splits that a folder has by the names of its folders to those that are described: val
/// tests where there is no test, as in copies of ImageNet, and images that are held out are the
/// validation split, beside which the folder may hold the classes themselves.
void find_splits(const fs::path& folder, const DatasetSpec& spec,
                 std::map<std::string, std::string>& splits) {
  const auto find = [&](const std::string& split, std::span<const char* const> names) {
    for (const char* name : names) {
      const bool taken = std::any_of(splits.begin(), splits.end(),
                                     [&](const auto& one) { return one.second == name; });
      if (!taken && is_folder(folder / name) && splits.emplace(split, name).second) return;
    }
  };
  const bool described = splits.contains("test");
  find("test", std::array{"test", "val"});
  if (!described && !holds_out(spec)) find("validation", kValidationFolders);
  const bool flat = holds_out(spec) && splits.empty() && !is_folder(folder / "train");
  splits.try_emplace("train", flat ? "." : "train");
  if (!holds_out(spec) && !splits.contains("validation")) splits.try_emplace("test", "val");
}

/// Fraction of each class that is held out of a bare folder's training images to validate with.
constexpr double kAutomaticValidation = 0.1;

/// Returns whether a bare folder has images to train on and none to validate with: in train/, or in
/// the folders of two classes or more. Beside test/ its classes must have ten images on average, so
/// that holding a tenth out takes little of what there was to train on.
bool lacks_validation_images(const fs::path& folder) {
  const auto is_here = [&](const char* name) { return is_folder(folder / name); };
  if (std::any_of(kValidationFolders.begin(), kValidationFolders.end(), is_here)) return false;
  const bool flat = !is_here("train"), tests = is_here("test");
  if (flat && tests) return false;
  const std::vector<std::string> folders = list_images(folder).folders;
  if (!misnamed_splits(folder, folders, /*are_classes=*/flat).empty()) return false;
  if (!flat && !tests) return true;
  const fs::path train = flat ? folder : folder / "train";
  const std::vector<std::string> classes = flat ? folders : list_images(train).folders;
  size_t filled = 0, images = 0;
  for (const std::string& name : classes) {
    const size_t count = list_images(train / name).images.size();
    filled += count > 0 ? 1 : 0;
    images += count;
    if (tests ? images >= 10 * classes.size() : filled == 2) return true;
  }
  return false;
}

/// Takes what the description does not say from the folder: its splits, and mean and std of
/// photographs.
void complete_image_folder(DatasetSpec& spec) {
  auto& settings = spec.format.as<ImageFolderSettings>();
  settings.undescribed = complete_channels(spec);
  fs::path place;
  for (const fs::path& folder : spec.search_folders()) {
    if (place.empty() && fs::is_directory(status_of(folder))) place = folder;
    if (!fs::is_directory(status_of(folder / source_image_folder(spec, "train")))) continue;
    place = folder;
    break;
  }
  if (place.empty()) return;
  settings.listed = true;
  settings.found = !settings.splits.contains("test");
  try {
    if (spec.is_path() && !spec.validation && lacks_validation_images(place)) {
      spec.validation = kAutomaticValidation;
    }
  } catch (const Error&) {  // A folder that cannot be listed: who trains on it is told so.
  }
  find_splits(place, spec, settings.splits);
}

}  // namespace

DatasetFormat image_folder_format() {
  return {.settings = NamedSettings("image_folder", ImageFolderSettings{}),
          .description =
              "folders of JPEG, PNG and WebP files, one for each class: <split>/<class>/<image>",
          .has_exif = true,
          .is_sorted_by_class = true,
          .check = check_image_folder,
          .complete = complete_image_folder,
          .open = open_image_folder,
          .splits = splits_image_folder,
          .required_paths =
              [](const DatasetSpec& spec, const std::string& split) {
                return std::vector<RequiredPath>{{source_image_folder(spec, split)}};
              },
          .fill_info = fill_image_folder_info};
}

}  // namespace moesaic
