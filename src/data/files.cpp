// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/suggestions.h"
#include "moesaic/base/text.h"
#include "moesaic/config/document.h"
#include "moesaic/data/image_walk.h"
#include "moesaic/formats/archive.h"
#include "moesaic/formats/gzip.h"

namespace moesaic {
namespace {

constexpr size_t kPieceBytes = 1 << 18;
/// Name of the list that a fetch writes beside the files of a verified archive: their SHA-256, in
/// the format of sha256sum.
constexpr std::string_view kHashList = "SHA256SUMS";

bool is_hex(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Returns whether the folder has the files of a split, whose roles begin with its name.
bool holds_split(const DatasetSpec& spec, const fs::path& folder, const std::string& split) {
  for (const auto& [role, file] : spec.files) {
    if (role.starts_with(split + "_") && find_in(folder, file).empty()) return false;
  }
  for (const RequiredPath& part : format_of(spec).required_paths(spec, split)) {
    const fs::file_status found = status_of(folder / part.path);
    if (!(part.is_folder ? fs::is_directory(found) : fs::is_regular_file(found))) return false;
  }
  return true;
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
    if (path.starts_with("./")) continue;  // Of its own files, see DatasetSpec::search_folders().
    if (!fs::path(path).is_absolute()) {
      add_folders(spec, (fs::path(spec.spec_folder) / path).lexically_normal(), folders);
    }
    add_folders(spec, resource(path), folders);
  }
  return folders;
}

/// Returns which splits can be read where another one cannot, as a part of a line.
std::string splits_here(const DatasetSpec& spec) {
  std::vector<std::string> splits = spec.stored_splits();
  std::erase_if(splits, [&](const std::string& one) { return spec.find_folder(one).empty(); });
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

/// Makes a folder for fetched files.
void make_data_folder(const fs::path& folder) {
  check_folder_path(folder, "data folder (MOESAIC_DATA)");
  std::error_code error;
  create_folders(folder, error);
  if (error) {
    fail("{}: cannot be made: {}; MOESAIC_DATA may name a folder that can be written to",
         folder.string(), error.message());
  }
}

/// Returns the max compressed size: gzip expands incompressible data by 5 bytes per 16 KiB and a
/// header, so a longer file is another one.
uint64_t max_packed_bytes(const DatasetFile& file) {
  return static_cast<uint64_t>(file.size) + static_cast<uint64_t>(file.size) / 1000 + 65536;
}

bool holds_all_verified(const DatasetSpec& described, const fs::path& folder) {
  const DatasetSpec spec = with_recorded_hashes(described, folder);
  return std::all_of(spec.files.begin(), spec.files.end(), [&](const auto& item) {
    return !item.second.sha256.empty() &&
           compare_file(find_in(folder, item.second), item.second).empty();
  });
}

/// Returns the files and folders that the dataset consists of, e.g. to be put there by hand.
std::string contents(const DatasetSpec& spec) {
  std::vector<std::string> names;
  for (const auto& [role, file] : spec.files) names.push_back(file.name);
  for (const std::string& split : spec.stored_splits()) {
    for (const RequiredPath& part : format_of(spec).required_paths(spec, split)) {
      const std::string name = part.is_folder ? part.path + "/" : part.path;
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns the addresses of a file of the description. Repositories of Hugging Face are data sets
/// here.
std::vector<std::string> addresses(const DatasetSpec& spec, const std::string& name) {
  constexpr std::string_view kHub = "hf://", kHubData = "hf://datasets/";
  std::vector<std::string> urls;
  for (std::string url : spec.urls) {
    if (url.starts_with(kHub) && !url.starts_with(kHubData)) url.replace(0, kHub.size(), kHubData);
    urls.push_back(url + (url.ends_with('/') ? "" : "/") + name);
  }
  return urls;
}

/// Downloads a file; `name` is that of messages.
void fetch_part(const DatasetSpec& spec, const std::string& name, FetchRequest request) {
  request.token_env = spec.token_env;
  const std::string problems = download(request, addresses(spec, request.path.filename().string()));
  if (problems.empty()) return;
  fail("dataset '{}': cannot fetch {}: {}; or put these by hand into {}: {}", spec.name, name,
       problems, spec.fetch_folder().string(), contents(spec));
}

/// Unpacks the verified archive to `place`, atomically.
void install_archive(const DatasetSpec& spec, const fs::path& archive, const fs::path& place) {
  const StagedDirectory unpacked(archive.parent_path() / (spec.archive->folder + ".unpacked"));
  unpack_archive(archive, unpacked.path(), {.max_bytes = spec.archive->max_size});
  StagedDirectory staged(place);
  std::string hashes;
  for (const auto& [role, file] : spec.files) {
    const fs::path source = unpacked.path() / spec.archive->folder / file.name;
    if (!fs::is_regular_file(status_of(source))) {
      fail("{}: the archive has no {}/{}", archive.string(), spec.archive->folder, file.name);
    }
    if (const std::string problem = compare_file(source, file); !problem.empty()) {
      fail("{}: {}", archive.string(), problem);
    }
    fs::rename(source, staged.path() / file.name);
    sync_path(staged.path() / file.name);
    hashes += fmt::format("{}  {}\n", sha256_file_hex(staged.path() / file.name), file.name);
  }
  write_atomic(staged.path() / kHashList, hashes);
  make_room(place);
  staged.commit();
}

FetchResult fetch_by_archive(const DatasetSpec& spec, FetchResult result,
                             const FetchOptions& options) {
  const fs::path folder = result.folder.parent_path();
  make_data_folder(folder);
  const LockFile lock(folder);
  remove_leftovers(folder);
  const DatasetArchive& archive = *spec.archive;
  const fs::path part = partial_path(folder / archive.name);
  fetch_part(spec, archive.name,
             {.path = folder / archive.name,
              .max_bytes = static_cast<uint64_t>(archive.max_size),
              .sha256 = archive.sha256,
              .md5 = archive.md5,
              .label = options.show_progress ? archive.name : "",
              .pause = options.pause});
  install_archive(spec, part, result.folder);
  fs::remove(part);
  for (const auto& [role, file] : spec.files) result.fetched.push_back(file.name);
  log_info("dataset '{}': {} fetched, verified and unpacked to {}", spec.name, spec.archive->name,
           result.folder.string());
  return result;
}

FetchResult fetch_files(const DatasetSpec& spec, const FetchOptions& options) {
  if (const DatasetFormat& format = format_of(spec); format.fetch && !spec.urls.empty()) {
    return format.fetch(spec, options);
  }
  if (const fs::path found = spec.find_folder();
      !found.empty() && holds_all_verified(spec, found)) {
    return {found, {}};
  }
  if (spec.urls.empty()) {
    fail("dataset '{}': the description has no URL; place or link the files at {}: {}", spec.name,
         spec.fetch_folder().string(), contents(spec));
  }
  FetchResult result{spec.fetch_folder(), {}};
  if (spec.archive) return fetch_by_archive(spec, std::move(result), options);
  make_data_folder(result.folder);
  const LockFile lock(result.folder);
  for (const auto& [role, file] : spec.files) {
    if (file.sha256.empty()) result.unhashed.push_back(file.name);
    const fs::path present = find_in(result.folder, file);
    if (!present.empty() && compare_file(present, file).empty()) continue;
    const fs::path place = result.folder / (file.name + ".gz");
    fetch_part(
        spec, file.name,
        {.path = place,
         .max_bytes = max_packed_bytes(file),
         .label = options.show_progress ? file.name : "",
         .problem_of = [&file = file](const fs::path& path) { return compare_file(path, file); },
         .pause = options.pause});
    install(place);
    result.fetched.push_back(file.name);
  }
  log_info("dataset '{}': fetched {} of {} to {}{}", spec.name, result.fetched.size(),
           count_text(static_cast<int64_t>(spec.files.size()), "file"), result.folder.string(),
           result.unhashed.empty() ? ", verified" : "");
  return result;
}

}  // namespace

std::string hash_problem(const char* name, const std::string& hash, size_t digits) {
  if (hash.empty() || is_hex(hash, digits)) return "";
  return fmt::format("{} must be {} lower-case hexadecimal digits, not '{}'", name, digits, hash);
}

std::vector<fs::path> DatasetSpec::search_folders() const {
  std::vector<fs::path> folders;
  for (const std::string& path : paths) {
    if (!path.starts_with("./")) continue;
    add_folders(*this, (fs::path(spec_folder) / path).lexically_normal(), folders);
  }
  std::ranges::move(lasting_folders(*this), std::back_inserter(folders));
  return folders;
}

fs::path DatasetSpec::fetch_folder() const {
  return lasting_folders(*this).front();
}

fs::path find_in(const fs::path& folder, const DatasetFile& file) {
  // A fetched file is compressed and takes precedence over a wrong uncompressed one.
  for (const std::string& name : {file.name + ".gz", file.name}) {
    if (fs::is_regular_file(status_of(folder / name))) return folder / name;
  }
  return {};
}

fs::path DatasetSpec::find_folder(std::string_view split) const {
  const std::vector<std::string> wanted =
      split.empty() ? stored_splits() : std::vector<std::string>{std::string(split)};
  for (const fs::path& folder : search_folders()) {
    const auto holds = [&](const std::string& one) { return holds_split(*this, folder, one); };
    if (std::all_of(wanted.begin(), wanted.end(), holds)) return folder;
  }
  return {};
}

DatasetSpec with_recorded_hashes(DatasetSpec spec, const fs::path& folder) {
  const fs::path list = folder / kHashList;
  if (!spec.archive || !fs::is_regular_file(status_of(list))) return spec;
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

std::string compare_file(const fs::path& path, const DatasetFile& file) try {
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

std::optional<RequiredPath> first_missing(const DatasetSpec& spec, const std::string& split) {
  const std::vector<RequiredPath> parts = format_of(spec).required_paths(spec, split);
  for (const fs::path& folder : spec.search_folders()) {
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
  for (const fs::path& folder : spec.search_folders()) folders.push_back(folder.string());
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

void fetch_shared(const DatasetSpec& spec, FetchRequest request) {
  const std::string folder = request.path.parent_path(), name = request.path.filename();
  make_data_folder(folder);
  request.token_env = spec.token_env;
  const std::string problems = fetch_first(request, addresses(spec, name));
  if (problems.empty()) return;
  fail("dataset '{}': cannot fetch {}: {}; or put it by hand into {}", spec.name, name, problems,
       folder);
}

FetchResult DatasetSource::fetch(const FetchOptions& options) const {
  FetchResult all;
  for (const DatasetSpec& spec : files()) {
    if (spec.is_generated()) continue;
    if (base_) log_info("dataset '{}' is made from the files of '{}'", name_, spec.name);
    const FetchResult one = fetch_files(spec, options);
    if (all.folder.empty()) all.folder = one.folder;
    all.fetched.insert(all.fetched.end(), one.fetched.begin(), one.fetched.end());
    all.unhashed.insert(all.unhashed.end(), one.unhashed.begin(), one.unhashed.end());
  }
  return all;
}

}  // namespace moesaic
