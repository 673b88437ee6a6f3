// SPDX-License-Identifier: Apache-2.0
// The one walk through folders of images: what is an image by its name, and what is left out.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/base/filesystem.h"

namespace moesaic {

/// Returns how names of images that can be read end: ".jpg" and others, in lower case. The content
/// determines what a file is.
const std::vector<std::string>& image_extensions();
/// Returns whether a file is called like an image that can be read, in upper or lower case.
bool has_image_name(const fs::path& path);

/// Returns whether a file is called like those that systems put beside images: Thumbs.db,
/// desktop.ini, .DS_Store, ._0001.jpg and others.
bool is_system_file(const fs::path& path);

enum class SkipReason {
  extension,
  dangling,
  nested,
  system,
  hidden,
  already_read,
  linked,
  special,
  beside
};

/// What a walk leaves out.
class SkippedFiles {
 public:
  /// Adds a file's name.
  void add(SkipReason why, std::string name) { names_[why].push_back(std::move(name)); }
  /// Adds what was left out of `folder`, whose name goes before the others'.
  void add(const std::string& folder, const SkippedFiles& other);

  /// Returns whether nothing was left out.
  bool empty() const { return names_.empty(); }
  /// Returns what was left out for this reason.
  std::vector<std::string> names(SkipReason why) const {
    const auto found = names_.find(why);
    return found == names_.end() ? std::vector<std::string>() : found->second;
  }
  /// Returns "2 left out: 1 link to nothing ('a'); 1 folder inside a class ('b')"; "" for nothing.
  std::string text() const;

 private:
  std::map<SkipReason, std::vector<std::string>> names_;
};

/// Names of what lies in a folder, sorted.
struct ImageListing {
  std::vector<std::string> folders, images;
  std::vector<std::string> links;  ///< Names of files and folders that are links.
  SkippedFiles skipped;
};

/// Lists a folder. Links are followed. Left out are links to nothing and to the folder itself or
/// one around it, files that are not called like images, hidden folders and images, and what
/// systems put beside photographs (`__MACOSX`, `@eaDir`); hidden files of other kinds and Thumbs.db
/// are passed over. Throws IoError where the folder or something in it cannot be examined, since an
/// image may be behind that.
ImageListing list_images(const fs::path& folder);

/// Returns what this program wrote into a folder: "a run", "a checkpoint", "an export", "an
/// experiment" or "of shards"; "" for other folders.
std::string output_folder_kind(const ImageListing& listing);

/// Image files with their paths, sorted.
struct FoundImages {
  std::vector<fs::path> files;
  SkippedFiles skipped;  ///< Names relative to the folder.
};

/// Finds the images in `folder` and in all folders below it as list_images() does. A folder that
/// several links lead to is walked once, and a link to a folder around it not at all.
FoundImages image_files_in(const fs::path& folder);

/// Returns the path that a file or folder has without links. Throws IoError if there is none.
fs::path canonical_path(const fs::path& path);

/// Returns whether a folder is there, also by a link. Throws IoError if that cannot be determined.
bool is_folder(const fs::path& path);

}  // namespace moesaic
