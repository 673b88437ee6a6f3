// SPDX-License-Identifier: Apache-2.0
#include "moesaic/data/fetch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

#include "download.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/text.h"
#include "moesaic/data/format.h"
#include "moesaic/formats/archive.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

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

/// Downloads one file from one URL; returns the problem, or "".
std::string fetch_from(const std::string& url, const DatasetFile& file, const fs::path& folder,
                       const FetchOptions& options) {
  const fs::path part = part_of(folder / (file.name + ".gz"));
  const std::string problem =
      download_checked({url, part, max_packed_bytes(file), options.progress ? file.name : ""},
                       [&](const fs::path& path) { return compare_file(path, file); });
  if (problem.empty()) install(part, folder / (file.name + ".gz"));
  return problem;
}

/// Returns the files and folders that the dataset consists of, e.g. to be put there by hand.
std::string contents(const DatasetSpec& spec) {
  std::vector<std::string> names;
  for (const auto& [role, file] : spec.files) names.push_back(file.name);
  for (const std::string& split : stored_splits(spec)) {
    for (const DatasetPart& part : format_of(spec).parts(spec, split)) {
      const std::string name = part.is_folder ? part.path + "/" : part.path;
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

[[noreturn]] void fail_fetching(const DatasetSpec& spec, const std::string& file,
                                const std::vector<std::string>& problems) {
  fail("dataset '{}': cannot fetch {}: {}; or put these by hand into {}: {}", spec.name, file,
       fmt::join(problems, "; "), fetch_folder(spec).string(), contents(spec));
}

void fetch_file(const DatasetSpec& spec, const DatasetFile& file, const fs::path& folder,
                const FetchOptions& options) {
  std::vector<std::string> problems;
  for (const std::string& base : spec.urls) {
    const std::string url = join_url(base, file.name + ".gz");
    const std::string problem = fetch_from(url, file, folder, options);
    if (problem.empty()) return;
    problems.push_back(fmt::format("{}: {}", url, problem));
  }
  fail_fetching(spec, file.name, problems);
}

/// Compares the whole file with the description of the archive; returns the problem, or "".
std::string compare_archive(const fs::path& path, const DatasetArchive& archive) {
  const bool by_sha = !archive.sha256.empty();
  const std::string found = by_sha ? sha256_file_hex(path) : md5_file_hex(path);
  const std::string& expected = by_sha ? archive.sha256 : archive.md5;
  if (found == expected) return "";
  return fmt::format("{} is {}, expected {}", by_sha ? "SHA-256" : "MD5", found, expected);
}

/// Downloads and verifies the archive from one URL to `part`; returns the problem, or "".
std::string fetch_archive_from(const std::string& url, const DatasetArchive& archive,
                               const fs::path& part, const FetchOptions& options) {
  return download_checked(
      {url, part, static_cast<uint64_t>(archive.max_size), options.progress ? archive.name : ""},
      [&](const fs::path& path) { return compare_archive(path, archive); });
}

void fetch_archive(const DatasetSpec& spec, const fs::path& part, const FetchOptions& options) {
  std::vector<std::string> problems;
  for (const std::string& base : spec.urls) {
    const std::string url = join_url(base, spec.archive->name);
    const std::string problem = fetch_archive_from(url, *spec.archive, part, options);
    if (problem.empty()) return;
    problems.push_back(fmt::format("{}: {}", url, problem));
  }
  fail_fetching(spec, spec.archive->name, problems);
}

/// Unpacks the verified archive to `place`, atomically.
void install_archive(const DatasetSpec& spec, const fs::path& archive, const fs::path& place) {
  const StagedDirectory unpacked(archive.parent_path() / (spec.archive->folder + ".unpacked"));
  unpack_archive(archive, unpacked.path(), {.bytes = spec.archive->max_size});
  StagedDirectory staged(place);
  std::string hashes;
  for (const auto& [role, file] : spec.files) {
    const fs::path source = unpacked.path() / spec.archive->folder / file.name;
    std::error_code error;
    if (!fs::is_regular_file(source, error)) {
      fail("{}: no {}/{} in it", archive.string(), spec.archive->folder, file.name);
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

void make_folder(const fs::path& folder) {
  std::error_code error;
  create_folders(folder, error);
  if (error) {
    fail("{}: cannot be made: {}; MOESAIC_DATA may name a folder that can be written to",
         folder.string(), error.message());
  }
}

FetchResult fetch_by_archive(const DatasetSpec& spec, FetchResult result,
                             const FetchOptions& options) {
  const fs::path folder = result.folder.parent_path();
  make_folder(folder);
  const LockFile lock(folder);
  remove_leftovers(folder);
  const fs::path part = part_of(folder / spec.archive->name);
  fetch_archive(spec, part, options);
  install_archive(spec, part, result.folder);
  fs::remove(part);
  for (const auto& [role, file] : spec.files) result.fetched.push_back(file.name);
  log_info("dataset '{}': {} fetched, verified and unpacked to {}", spec.name, spec.archive->name,
           result.folder.string());
  return result;
}

}  // namespace

FetchResult fetch_dataset(std::string_view name, const FetchOptions& options) {
  const bool derived = !load_dataset_spec(name).base.empty();
  FetchResult all;
  for (const DatasetSpec& spec : file_specs(name)) {
    if (spec.generated()) continue;
    if (derived) {
      log_info("dataset '{}' is made of '{}', whose files these are", name, spec.name);
    }
    const FetchResult one = fetch_dataset(spec, options);
    if (all.folder.empty()) all.folder = one.folder;
    all.fetched.insert(all.fetched.end(), one.fetched.begin(), one.fetched.end());
    all.unhashed.insert(all.unhashed.end(), one.unhashed.begin(), one.unhashed.end());
  }
  return all;
}

FetchResult fetch_dataset(const DatasetSpec& spec, const FetchOptions& options) {
  if (const DatasetFormat& format = format_of(spec); format.fetch && !spec.urls.empty()) {
    return format.fetch(spec, options);
  }
  if (const fs::path found = find_folder(spec); !found.empty() && holds_all_verified(spec, found)) {
    return {found, {}};
  }
  if (spec.urls.empty()) {
    fail("dataset '{}': its description has no URL to fetch from; put it or a link at {}: {}",
         spec.name, fetch_folder(spec).string(), contents(spec));
  }
  FetchResult result{fetch_folder(spec), {}};
  if (spec.archive) return fetch_by_archive(spec, std::move(result), options);
  make_folder(result.folder);
  const LockFile lock(result.folder);
  for (const auto& [role, file] : spec.files) {
    if (file.sha256.empty()) result.unhashed.push_back(file.name);
    const fs::path present = find_in(result.folder, file);
    if (!present.empty() && compare_file(present, file).empty()) continue;
    fetch_file(spec, file, result.folder, options);
    result.fetched.push_back(file.name);
  }
  log_info("dataset '{}': fetched {} of {} to {}{}", spec.name, result.fetched.size(),
           count_text(static_cast<int64_t>(spec.files.size()), "file"), result.folder.string(),
           result.unhashed.empty() ? ", verified" : "");
  return result;
}

}  // namespace moesaic
