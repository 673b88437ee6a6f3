// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/path.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "moesaic/data/image_walk.h"
#include "moesaic/formats/gzip.h"

namespace moesaic {
namespace {

constexpr size_t kPieceBytes = 1 << 18;

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Returns whether the folder has the files of a split, whose roles begin with its name.
bool holds_split(const DatasetSpec& spec, const fs::path& folder, const std::string& split) {
  for (const auto& [role, file] : spec.files) {
    if (role.starts_with(split + "_") && find_in(folder, file).empty()) return false;
  }
  for (const RequiredPath& part : format_of(spec).required_paths(spec, split)) {
    std::error_code error;
    const fs::path path = folder / part.path;
    if (!(part.is_folder ? fs::is_directory(path, error) : fs::is_regular_file(path, error))) {
      return false;
    }
  }
  return true;
}

/// Returns whether one of the description's paths is that of its own files.
bool is_beside(const std::string& path) {
  return path.starts_with("./");
}

/// Adds the folders to look in for a dataset whose own folder is `place`.
void add_folders(const DatasetSpec& spec, const fs::path& place, std::vector<fs::path>& folders) {
  if (spec.archive) folders.push_back(place / spec.archive->folder);
  folders.push_back(place);
}

/// Returns the search folders but for those relative to the description.
std::vector<fs::path> lasting_folders(const DatasetSpec& spec) {
  std::vector<fs::path> folders;
  const std::string& own = spec.folder.empty() ? spec.name : spec.folder;
  const char* data = std::getenv("MOESAIC_DATA");
  if (data != nullptr && *data != '\0' && !spec.is_path()) {
    add_folders(spec, fs::path(data) / own, folders);
    if (spec.archive) folders.push_back(fs::path(data) / spec.archive->folder);
  }
  if (!spec.is_path()) add_folders(spec, resource("datasets") / "cache" / own, folders);
  for (const std::string& path : spec.paths) {
    if (is_beside(path)) continue;
    if (!fs::path(path).is_absolute()) {
      add_folders(spec, (fs::path(spec.spec_folder) / path).lexically_normal(), folders);
    }
    add_folders(spec, resource(path), folders);
  }
  return folders;
}

/// Returns which splits can be read where another one cannot, as a part of a line.
std::string splits_here(const DatasetSpec& spec) {
  std::vector<std::string> splits = on_disk_splits(spec);
  std::erase_if(splits, [&](const std::string& one) { return find_folder(spec, one).empty(); });
  return splits.empty() ? "" : fmt::format("; splits that are here: {}", fmt::join(splits, ", "));
}

/// Returns which folder may be meant by one that is not there, as a part of a line.
std::string where_instead(const fs::path& folder, const std::string& part) {
  for (const std::string& name : list_images(folder).folders) {
    if (!is_folder(folder / name / part)) continue;
    return fmt::format(", but in '{}/'", (folder / name).string());
  }
  return nearest_sibling(folder / part, PathForm::name);
}

bool is_known(const std::string& name) {
  return std::ranges::count(dataset_names(), name) > 0;
}

/// Returns which folder may be meant by one that somebody's own description names and that is not
/// there, as a part of a line; "" where none is like it.
std::string misspelt_folder(const DatasetSpec& spec, const std::optional<RequiredPath>& part) {
  if (is_known(spec.name)) return "";
  for (const std::string& path : spec.paths) {
    fs::path folder = (fs::path(spec.spec_folder) / path).lexically_normal();
    const bool here = is_folder(folder);
    if (here && part) folder /= part->path;
    std::string hint = nearest_sibling(folder, here ? PathForm::name : PathForm::path, is_folder);
    if (!is_folder(folder) && hint.starts_with("; did you mean")) return hint;
  }
  return "";
}

}  // namespace

std::string hash_problem(const char* name, const std::string& hash, size_t digits) {
  if (hash.empty() || is_hex(hash, digits)) return "";
  return fmt::format("{} must be {} lower-case hexadecimal digits, not '{}'", name, digits, hash);
}

std::vector<fs::path> search_folders(const DatasetSpec& spec) {
  std::vector<fs::path> folders;
  for (const std::string& path : spec.paths) {
    if (!is_beside(path)) continue;
    add_folders(spec, (fs::path(spec.spec_folder) / path).lexically_normal(), folders);
  }
  for (fs::path& folder : lasting_folders(spec)) folders.push_back(std::move(folder));
  return folders;
}

fs::path fetch_folder(const DatasetSpec& spec) {
  return lasting_folders(spec).front();
}

fs::path find_in(const fs::path& folder, const DatasetFile& file) {
  // A fetched file is compressed and takes precedence over a wrong uncompressed one.
  for (const std::string& name : {file.name + ".gz", file.name}) {
    std::error_code error;
    if (fs::is_regular_file(folder / name, error)) return folder / name;
  }
  return {};
}

fs::path find_folder(const DatasetSpec& spec, std::string_view split) {
  const std::vector<std::string> wanted =
      split.empty() ? on_disk_splits(spec) : std::vector<std::string>{std::string(split)};
  for (const fs::path& folder : search_folders(spec)) {
    const auto holds = [&](const std::string& one) { return holds_split(spec, folder, one); };
    if (std::all_of(wanted.begin(), wanted.end(), holds)) return folder;
  }
  return {};
}

DatasetSpec with_recorded_hashes(DatasetSpec spec, const fs::path& folder) {
  const fs::path list = folder / kHashList;
  std::error_code error;
  if (!spec.archive || !fs::is_regular_file(list, error)) return spec;
  std::istringstream lines{std::string(
      without_byte_order_mark(read_text(list, kMaxListBytes, "a list of SHA-256 sums")))};
  std::map<std::string, std::string> hashes;
  for (std::string line; std::getline(lines, line);) {
    constexpr size_t kDigits = 64;
    if (line.size() < kDigits + 3 || !is_hex(line.substr(0, kDigits), kDigits)) {
      fail("{}: not a list of SHA-256 sums: '{}'", list.string(), line.substr(0, 80));
    }
    hashes[line.substr(kDigits + 2)] = line.substr(0, kDigits);
  }
  for (auto& [role, file] : spec.files) {
    const auto found = hashes.find(file.name);
    if (file.sha256.empty() && found != hashes.end()) file.sha256 = found->second;
  }
  return spec;
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
    if (file.sha256.empty() || hash.hex() == file.sha256) return "";
    return fmt::format("{}: SHA-256 of the unpacked bytes is {}, expected {}", path.string(),
                       hash.hex(), file.sha256);
  } catch (const IoError&) {
    throw;  // Nothing is known of what the file holds.
  } catch (const Error& error) {
    return error.what();
  }
}

std::optional<RequiredPath> first_missing(const DatasetSpec& spec, const std::string& split) {
  const std::vector<RequiredPath> parts = format_of(spec).required_paths(spec, split);
  for (const fs::path& folder : search_folders(spec)) {
    const auto here = [&](const RequiredPath& part) { return path_exists(folder / part.path); };
    const auto missing = std::find_if_not(parts.begin(), parts.end(), here);
    if (missing != parts.end() && std::any_of(parts.begin(), parts.end(), here)) return *missing;
  }
  return parts.empty() ? std::nullopt : std::optional(parts.front());
}

std::string text_of(const RequiredPath& part) {
  return fmt::format("{} '{}'", part.is_folder ? "folder" : "file", part.path);
}

std::string fetch_command(const std::string& name) {
  return "moesaic data fetch " + (is_known(name) ? name : "DESCRIPTION.json");
}

void fail_missing(const DatasetSpec& spec, const std::string& split) {
  std::vector<std::string> folders;
  for (const fs::path& folder : search_folders(spec)) folders.push_back(folder.string());
  std::string what = "files", how = "put them or a link there";
  const std::string wanted = split.empty() ? "train" : split;
  const std::vector<RequiredPath> train = format_of(spec).required_paths(spec, "train");
  if (spec.is_path() && !train.empty() && !path_exists(spec.name + "/" + train[0].path)) {
    fail_usage(
        "dataset '{}': folder '{}' not found in the dataset{}; images lie in {}/<class>, and in "
        "test/<class>, val/<class>, validation/<class> or valid/<class>, or all in the folders of "
        "two classes or more",
        spec.name, train[0].path, as_statement(where_instead(spec.name, train[0].path)),
        train[0].path);
  }
  const std::optional<RequiredPath> part = first_missing(spec, wanted);
  std::string misspelt = misspelt_folder(spec, part);
  if (part) {
    what = text_of(*part);
    how = "put it or a link there";
    if (spec.is_path() && wanted == "test") {
      misspelt = nearest_sibling(fs::path(spec.name) / part->path, PathForm::name, is_folder);
      how += ", or name it 'test'";
    }
  }
  if (!spec.files.empty() || (format_of(spec).fetch && !spec.urls.empty())) {
    how = fmt::format("run '{}'", fetch_command(spec.name));
  }
  const std::string package =
      spec.debian_package.empty() ? "" : fmt::format(" or install {}", spec.debian_package);
  // What is misspelt is wrong use; files that are not here yet are none.
  throw Error(misspelt.empty() ? ErrorKind::failure : ErrorKind::usage,
              fmt::format("dataset '{}': {} not found in {}{}; {}{}{}", spec.name, what,
                          fmt::join(folders, ", "), as_statement(misspelt), how, package,
                          split.empty() ? "" : splits_here(spec)));
}

}  // namespace moesaic
