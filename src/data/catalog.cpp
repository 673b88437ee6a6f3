// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <span>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/nearest.h"
#include "moesaic/base/resources.h"
#include "moesaic/config/document.h"
#include "moesaic/formats/gzip.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

constexpr int kMaxSubsetDepth = 8;
constexpr size_t kPieceBytes = 1 << 18;

fs::path description_folder() {
  return resource("datasets");
}

std::string own_problem(const DatasetSpec& spec) {
  static const std::vector<std::string> kRoles = {"train_images", "train_labels", "test_images",
                                                  "test_labels"};
  for (const auto& [role, file] : spec.files) {
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
      return fmt::format("unknown key '{}' in files; {}", role, did_you_mean(role, kRoles));
    }
  }
  for (const std::string& role : kRoles) {
    if (!spec.files.contains(role)) return fmt::format("files.{} is missing", role);
  }
  if (spec.classes.empty()) return "classes is missing";
  if (std::set<std::string>(spec.classes.begin(), spec.classes.end()).size() !=
      spec.classes.size()) {
    return "classes names a class twice";
  }
  if (spec.mean.size() != 1 || spec.std.size() != 1) {
    return "idx pictures have one channel: mean and std need one number each";
  }
  return spec.keep_classes.empty() ? "" : "keep_classes needs base";
}

std::string subset_problem(const DatasetSpec& spec) {
  if (spec.keep_classes.empty()) return "a dataset with base needs keep_classes";
  if (!spec.classes.empty() || !spec.files.empty() || !spec.mean.empty() || !spec.std.empty()) {
    return "a dataset with base takes classes, mean, std and files from it";
  }
  return "";
}

bool holds_split(const DatasetSpec& spec, const fs::path& folder, std::string_view split) {
  for (const auto& [role, file] : spec.files) {
    const bool wanted = split.empty() || role.starts_with(std::string(split) + "_");
    if (wanted && find_in(folder, file).empty()) return false;
  }
  return true;
}

}  // namespace

std::string config_problem(const DatasetFile& file) {
  if (file.name.empty() || file.name[0] == '.' || file.name.find('/') != std::string::npos) {
    return fmt::format("name must be a file name without folders, not '{}'", file.name);
  }
  if (file.sha256.size() != 64 ||
      file.sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return fmt::format("sha256 must be 64 lower-case hexadecimal digits, not '{}'", file.sha256);
  }
  return "";
}

std::string config_problem(const DatasetSpec& spec) {
  return spec.base.empty() ? own_problem(spec) : subset_problem(spec);
}

std::vector<std::string> dataset_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(description_folder(), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".json") names.push_back(it->path().stem().string());
  }
  if (error) {
    fail("{}: {} (MOESAIC_HOME must name the folder that holds datasets/)",
         description_folder().string(), error.message());
  }
  std::sort(names.begin(), names.end());
  return names;
}

DatasetSpec load_dataset_spec(std::string_view name) {
  const std::vector<std::string> names = dataset_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    fail_usage("unknown dataset '{}'; {}", name, did_you_mean(name, names));
  }
  const fs::path source = description_folder() / (std::string(name) + ".json");
  const DatasetSpec spec = parse<DatasetSpec>(Document::from_file(source).root());
  if (spec.name != name) {
    fail_usage("{}: name is '{}', but the file is named after '{}'", source.string(), spec.name,
               name);
  }
  return spec;
}

DatasetSpec load_base_spec(std::string_view name) {
  DatasetSpec spec = load_dataset_spec(name);
  for (int depth = 0; !spec.base.empty(); ++depth) {
    if (depth == kMaxSubsetDepth) fail_usage("dataset '{}': bases lead round in a circle", name);
    spec = load_dataset_spec(spec.base);
  }
  return spec;
}

std::vector<fs::path> search_folders(const DatasetSpec& spec) {
  std::vector<fs::path> folders;
  const char* data = std::getenv("MOESAIC_DATA");
  if (data != nullptr && *data != '\0') folders.push_back(fs::path(data) / spec.name);
  folders.push_back(description_folder() / "cache" / spec.name);
  for (const std::string& path : spec.paths) folders.push_back(resource(path));
  return folders;
}

fs::path fetch_folder(const DatasetSpec& spec) {
  return search_folders(spec).front();
}

fs::path find_in(const fs::path& folder, const DatasetFile& file) {
  // A fetched file is packed, so that it takes the place of an unpacked one that was wrong.
  for (const std::string& name : {file.name + ".gz", file.name}) {
    std::error_code error;
    if (fs::is_regular_file(folder / name, error)) return folder / name;
  }
  return {};
}

fs::path find_folder(const DatasetSpec& spec, std::string_view split) {
  for (const fs::path& folder : search_folders(spec)) {
    if (holds_split(spec, folder, split)) return folder;
  }
  return {};
}

std::string compare_file(const fs::path& path, const DatasetFile& file) {
  try {
    UnpackedReader reader(path);
    Sha256 hash;
    std::vector<uint8_t> piece(kPieceBytes);
    int64_t size = 0;
    while (const size_t count = reader.read(piece)) {
      size += static_cast<int64_t>(count);
      if (size > file.size) {
        return fmt::format("{}: more than {} bytes unpacked", path.string(), file.size);
      }
      hash.update(std::as_bytes(std::span(piece).first(count)));
    }
    if (size < file.size) {
      return fmt::format("{}: {} bytes unpacked, expected {}", path.string(), size, file.size);
    }
    if (hash.hex() == file.sha256) return "";
    return fmt::format("{}: SHA-256 of the unpacked bytes is {}, expected {}", path.string(),
                       hash.hex(), file.sha256);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace moesaic
