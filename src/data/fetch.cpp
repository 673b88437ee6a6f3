// SPDX-License-Identifier: Apache-2.0
// The files of described datasets, fetched and unpacked.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/text.h"
#include "moesaic/data/format.h"
#include "moesaic/formats/archive.h"

namespace moesaic {
namespace {

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
  for (const std::string& split : on_disk_splits(spec)) {
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
       problems, fetch_folder(spec).string(), contents(spec));
}

/// Unpacks the verified archive to `place`, atomically.
void install_archive(const DatasetSpec& spec, const fs::path& archive, const fs::path& place) {
  const StagedDirectory unpacked(archive.parent_path() / (spec.archive->folder + ".unpacked"));
  unpack_archive(archive, unpacked.path(), {.max_bytes = spec.archive->max_size});
  StagedDirectory staged(place);
  std::string hashes;
  for (const auto& [role, file] : spec.files) {
    const fs::path source = unpacked.path() / spec.archive->folder / file.name;
    std::error_code error;
    if (!fs::is_regular_file(source, error)) {
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
  if (const fs::path found = find_folder(spec); !found.empty() && holds_all_verified(spec, found)) {
    return {found, {}};
  }
  if (spec.urls.empty()) {
    fail("dataset '{}': the description has no URL; place or link the files at {}: {}", spec.name,
         fetch_folder(spec).string(), contents(spec));
  }
  FetchResult result{fetch_folder(spec), {}};
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
