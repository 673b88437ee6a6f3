// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/image_walk.h"

#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <deque>
#include <set>
#include <string_view>
#include <system_error>

#include "moesaic/base/posix.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

/// What a reason is called of one and of several.
const std::pair<std::string, std::string>& words_of(SkipReason why) {
  static const std::string known = fmt::format("{}", fmt::join(image_extensions(), ", "));
  static const std::map<SkipReason, std::pair<std::string, std::string>> words = {
      {SkipReason::extension, {"file not called " + known, "files not called " + known}},
      {SkipReason::dangling, {"link to nothing", "links to nothing"}},
      {SkipReason::nested, {"folder inside a class", "folders inside a class"}},
      {SkipReason::system, {"folder that a system made", "folders that a system made"}},
      {SkipReason::hidden, {"hidden", "hidden"}},
      {SkipReason::already_read, {"folder that is read already", "folders that are read already"}},
      {SkipReason::linked, {"link to what is read already", "links to what is read already"}},
      {SkipReason::special, {"neither file nor folder", "neither files nor folders"}},
      {SkipReason::beside,
       {"image beside the folders of the classes", "images beside the folders of the classes"}}};
  return words.at(why);
}

bool is_of_system(std::string_view name) {
  constexpr std::array<std::string_view, 8> kNames = {
      "__MACOSX", "@eaDir",     "#recycle",     "@Recycle",
      "@__thumb", "lost+found", "$RECYCLE.BIN", "System Volume Information"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

/// Returns the type of what an entry is or leads to; not_found of a link to nothing. Asks the
/// system only where the folder's listing did not tell.
fs::file_type type_of(const fs::directory_entry& entry) {
  std::error_code error;
  if (!entry.is_symlink(error)) {
    if (entry.is_regular_file(error)) return fs::file_type::regular;
    if (entry.is_directory(error)) return fs::file_type::directory;
  }
  const fs::file_type type = entry.status(error).type();
  if (type != fs::file_type::none) return type;
  // A link that leads back to itself leads nowhere.
  if (error == std::errc::too_many_symbolic_link_levels) return fs::file_type::not_found;
  fail_errno(entry.path(), "cannot be examined", error.value());
}

/// Returns whether a folder is a link to the one that it lies in, or to one around that.
bool is_circle(const fs::directory_entry& entry) {
  std::error_code unknown;
  if (!entry.is_symlink(unknown)) return false;
  const fs::path outer = canonical_path(entry.path()),
                 inner = canonical_path(entry.path().parent_path());
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void take(const fs::directory_entry& entry, ImageListing& listing) {
  std::string name = entry.path().filename().string();
  std::error_code unknown;
  if (name.starts_with('.')) {
    if (has_image_name(name) || entry.is_directory(unknown)) {
      listing.skipped.add(SkipReason::hidden, std::move(name));
    }
    return;
  }
  const bool is_link = entry.is_symlink(unknown);
  switch (type_of(entry)) {
    case fs::file_type::regular:
      if (has_image_name(name)) {
        if (is_link) listing.links.push_back(name);
        listing.images.push_back(std::move(name));
      } else if (!is_system_file(name)) {
        listing.skipped.add(SkipReason::extension, std::move(name));
      }
      return;
    case fs::file_type::directory:
      if (is_of_system(name)) {
        listing.skipped.add(SkipReason::system, std::move(name));
      } else if (is_circle(entry)) {
        listing.skipped.add(SkipReason::already_read, std::move(name));
      } else {
        if (is_link) listing.links.push_back(name);
        listing.folders.push_back(std::move(name));
      }
      return;
    case fs::file_type::not_found:
      return listing.skipped.add(SkipReason::dangling, std::move(name));
    default:
      return listing.skipped.add(SkipReason::special, std::move(name));
  }
}

}  // namespace

const std::vector<std::string>& image_extensions() {
  static const std::vector<std::string> endings = {".jpg",  ".jpeg", ".jpe",
                                                   ".jfif", ".png",  ".webp"};
  return endings;
}

bool has_image_name(const fs::path& path) {
  const std::string ending = path.extension().string();
  return std::ranges::any_of(image_extensions(), [&](const std::string& known) {
    return ::strcasecmp(known.c_str(), ending.c_str()) == 0;
  });
}

bool is_system_file(const fs::path& path) {
  constexpr std::array<std::string_view, 4> kNames = {".DS_Store", "Thumbs.db", "ehthumbs.db",
                                                      "desktop.ini"};
  const std::string name = path.filename().string();
  return name.starts_with("._") || std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

void SkippedFiles::add(const std::string& folder, const SkippedFiles& other) {
  for (const auto& [why, names] : other.names_) {
    for (const std::string& name : names) add(why, folder.empty() ? name : folder + "/" + name);
  }
}

std::string SkippedFiles::text() const {
  size_t count = 0;
  std::vector<std::string> parts;
  for (const auto& [why, names] : names_) {
    const auto& [one, several] = words_of(why);
    count += names.size();
    parts.push_back(fmt::format("{} {} ({})", names.size(), names.size() == 1 ? one : several,
                                quoted_names(names)));
  }
  return empty() ? "" : fmt::format("{} left out: {}", count, fmt::join(parts, "; "));
}

ImageListing list_images(const fs::path& folder) {
  ImageListing listing;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    take(*it, listing);
  }
  if (error) fail_errno(folder, "cannot be listed", error.value());
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.images.begin(), listing.images.end());
  std::sort(listing.links.begin(), listing.links.end());
  return listing;
}

std::string output_folder_kind(const ImageListing& listing) {
  const std::vector<std::string> files = listing.skipped.names(SkipReason::extension);
  const auto has = [&](std::string_view name) { return std::ranges::count(files, name) > 0; };
  constexpr std::pair<const char*, const char*> kKinds[] = {{"MANIFEST.json", "a checkpoint"},
                                                            {"preprocess.json", "an export"},
                                                            {"runs.json", "an experiment"},
                                                            {"metrics.jsonl", "a run"}};
  for (const auto& [file, kind] : kKinds) {
    if (has("config.json") && has(file)) return kind;
  }
  if (has("config.json") && std::ranges::count(listing.folders, "checkpoints") > 0) return "a run";
  const auto is_shard = [](const std::string& name) { return name.ends_with(".tar"); };
  return listing.images.empty() && std::ranges::any_of(files, is_shard) ? "of shards" : "";
}

FoundImages image_files_in(const fs::path& folder) {
  FoundImages found;
  // Folders come before links to folders, so that what is both below and linked has its own name.
  std::deque<fs::path> folders(1), links;  // Relative to `folder`, which is the first.
  std::set<fs::path> entered;
  while (!folders.empty() || !links.empty()) {
    std::deque<fs::path>& next = folders.empty() ? links : folders;
    const fs::path below = std::move(next.front());
    next.pop_front();
    const fs::path place = below.empty() ? folder : folder / below;
    if (!entered.insert(canonical_path(place)).second) {
      found.skipped.add(SkipReason::already_read, below.string());
      continue;
    }
    const ImageListing listing = list_images(place);
    for (const std::string& name : listing.images) found.files.push_back(place / name);
    for (const std::string& name : listing.folders) {
      const bool is_link = std::ranges::binary_search(listing.links, name);
      (is_link ? links : folders).push_back(below / name);
    }
    found.skipped.add(below.string(), listing.skipped);
  }
  std::sort(found.files.begin(), found.files.end());
  return found;
}

fs::path canonical_path(const fs::path& path) {
  std::error_code error;
  fs::path place = fs::canonical(path, error);
  if (error) fail_errno(path, "cannot be examined", error.value());
  return place;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) fail_errno(path, "cannot be examined", error.value());
  return fs::is_directory(status);
}

}  // namespace moesaic
