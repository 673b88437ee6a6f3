// SPDX-License-Identifier: Apache-2.0
// Folders of images, one for each class: <split>/<class>/<image>.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <system_error>

#include "image_files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/log.h"
#include "moesaic/base/nearest.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

enum class Listed { folders, images };

bool is_jpeg_name(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg";
}

struct Listing {
  std::vector<std::string> names;  ///< sorted
  int64_t others = 0;              ///< files that are left out
};

/// What lies directly in `folder`; hidden names are passed over. Links are followed, but nothing is
/// entered, so a circle of links leads nowhere.
Listing list_folder(const fs::path& folder, Listed what) {
  Listing listing;
  std::error_code error, unknown;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    if (what == Listed::folders) {
      if (it->is_directory(unknown)) listing.names.push_back(std::move(name));
    } else if (is_jpeg_name(it->path()) && it->is_regular_file(unknown)) {
      listing.names.push_back(std::move(name));
    } else {
      ++listing.others;
    }
  }
  if (error) fail("{}: cannot be listed: {}", folder.string(), error.message());
  std::sort(listing.names.begin(), listing.names.end());
  return listing;
}

/// The described classes, else the folders of the training images, which the others have too.
std::vector<std::string> classes_in(const DatasetSpec& spec, const fs::path& folder,
                                    const fs::path& part) {
  if (!spec.classes.empty()) return spec.classes;
  const fs::path train = folder / split_source(spec, "train");
  std::error_code error;
  const fs::path& source = fs::is_directory(train, error) ? train : part;
  std::vector<std::string> classes = list_folder(source, Listed::folders).names;
  if (classes.empty()) fail("{}: no folder of a class in it", source.string());
  if (spec.class_count > 0 && static_cast<int64_t>(classes.size()) != spec.class_count) {
    fail("dataset '{}': {} has folders of {} classes, expected {}", spec.name, source.string(),
         classes.size(), spec.class_count);
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

}  // namespace

std::shared_ptr<const ImageFiles> open_image_folder(DatasetInfo info, const DatasetSpec& spec,
                                                    const fs::path& folder) {
  const fs::path part = folder / split_source(spec, info.split);
  info.classes = classes_in(spec, folder, part);
  info.channels = 3;
  const std::vector<std::string> found = list_folder(part, Listed::folders).names;
  check_known(found, info.classes, part);
  FileList files(part);
  int64_t others = 0;
  for (size_t label = 0; label < info.classes.size(); ++label) {
    const std::string& name = info.classes[label];
    if (!std::binary_search(found.begin(), found.end(), name)) continue;
    const int32_t number = files.add_folder(name);
    const Listing listing = list_folder(part / name, Listed::images);
    others += listing.others;
    for (const std::string& file : listing.names) {
      files.add(number, file, static_cast<int32_t>(label));
    }
  }
  if (files.size() == 0) fail("{}: no JPEG images in its folders", part.string());
  if (others > 0) {
    log_warning("dataset '{}': {} files below {} are no JPEG by their names and are left out",
                info.name, others, part.string());
  }
  return std::make_shared<ImageFiles>(std::move(info), std::move(files));
}

}  // namespace moesaic
