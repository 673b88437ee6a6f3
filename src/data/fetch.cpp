// SPDX-License-Identifier: Apache-2.0
// Downloads that are resumed, compared and put in place.
#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/text.h"
#include "moesaic/data/format.h"
#include "moesaic/formats/archive.h"

namespace moesaic {
namespace {

constexpr long kConnectSeconds = 20;
constexpr long kStalledSeconds = 30;
constexpr long kStalledBytesPerSecond = 1024;
constexpr long kMaxRedirects = 10;
constexpr long kHttpRangeNotSatisfiable = 416;

struct DownloadResult {
  std::string problem;         ///< Reason of a failure in one line; empty on success.
  bool cannot_resume = false;  ///< Whether the server cannot resume.
};

/// Target of libcurl's callbacks. No exception may pass through C code, so it is stored here.
struct Sink {
  const WantedFile& file;
  const fs::path& part;
  int fd;
  uint64_t start;  ///< Number of bytes from an earlier try.
  uint64_t written;
  std::string problem;
  std::optional<Progress> progress;
};

size_t on_data(char* data, size_t size, size_t count, void* user) noexcept {
  Sink& sink = *static_cast<Sink*>(user);
  const size_t bytes = size * count;
  try {
    if (bytes > sink.file.max_bytes - sink.written) {
      fail("the file is longer than the {} bytes that it may have", sink.file.max_bytes);
    }
    write_all(sink.fd, std::as_bytes(std::span(data, bytes)), sink.part);
    sink.written += bytes;
    return bytes;
  } catch (const std::exception& error) {
    sink.problem = error.what();
    return CURL_WRITEFUNC_ERROR;
  }
}

int on_progress(void* user, curl_off_t total, curl_off_t now, curl_off_t, curl_off_t) noexcept {
  Sink& sink = *static_cast<Sink*>(user);
  if (total <= 0 || now <= 0) return 0;
  try {
    if (!sink.progress) {
      ProgressOptions options;
      options.label = sink.file.label;
      options.unit = "bytes";
      options.start = static_cast<int64_t>(sink.start);
      sink.progress.emplace(std::move(options));
    }
    const auto start = static_cast<int64_t>(sink.start);
    sink.progress->show(start + now, start + total);
    return 0;
  } catch (const std::exception& error) {
    sink.problem = error.what();
    return 1;
  }
}

using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;

Handle make_handle() {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (initialised != CURLE_OK) fail("libcurl: {}", curl_easy_strerror(initialised));
  Handle handle(curl_easy_init(), &curl_easy_cleanup);
  if (handle == nullptr) fail("libcurl: cannot make a handle");
  return handle;
}

void set(const Handle& handle, CURLoption option, auto value) {
  const CURLcode code = curl_easy_setopt(handle.get(), option, value);
  if (code != CURLE_OK) fail("libcurl: {}", curl_easy_strerror(code));
}

void set_up(const Handle& handle, const std::string& url, Sink& sink, char* message) {
  set(handle, CURLOPT_URL, url.c_str());
  set(handle, CURLOPT_PROTOCOLS_STR, "http,https,file");
  set(handle, CURLOPT_REDIR_PROTOCOLS_STR, url.starts_with("https:") ? "https" : "http,https");
  set(handle, CURLOPT_FOLLOWLOCATION, 1L);
  set(handle, CURLOPT_MAXREDIRS, kMaxRedirects);
  set(handle, CURLOPT_FAILONERROR, 1L);
  set(handle, CURLOPT_NOSIGNAL, 1L);
  set(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  set(handle, CURLOPT_LOW_SPEED_TIME, kStalledSeconds);
  set(handle, CURLOPT_LOW_SPEED_LIMIT, kStalledBytesPerSecond);
  set(handle, CURLOPT_USERAGENT, "moesaic");
  set(handle, CURLOPT_ERRORBUFFER, message);
  set(handle, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(sink.start));
  set(handle, CURLOPT_WRITEFUNCTION, &on_data);
  set(handle, CURLOPT_WRITEDATA, static_cast<void*>(&sink));
  if (sink.file.label.empty()) return;
  set(handle, CURLOPT_NOPROGRESS, 0L);
  set(handle, CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(handle, CURLOPT_XFERINFODATA, static_cast<void*>(&sink));
}

/// Returns whether there are bytes from an earlier try.
bool has_bytes(const fs::path& part) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(part, error);
  return !error && bytes > 0;
}

/// Fetches the rest of a part, which is made if it is missing, and syncs it. On failure the
/// received bytes stay.
DownloadResult download_rest(const std::string& url, const WantedFile& file, const fs::path& part) {
  const UniqueFd fd = open_own(part, O_WRONLY | O_APPEND);
  const uint64_t start = fs::file_size(part);
  if (start > file.max_bytes) return {"the file of an earlier attempt is too long", true};
  Sink sink{file, part, fd.get(), start, start, "", std::nullopt};
  std::array<char, CURL_ERROR_SIZE> message{};
  const Handle handle = make_handle();
  set_up(handle, url, sink, message.data());
  const CURLcode code = curl_easy_perform(handle.get());
  if (sink.progress) sink.progress->finish();
  sync_fd(fd.get(), part);
  if (code == CURLE_OK) return {};
  DownloadResult result;
  long status = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  result.cannot_resume = status == kHttpRangeNotSatisfiable || code == CURLE_RANGE_ERROR ||
                         code == CURLE_BAD_DOWNLOAD_RESUME;
  result.problem = !sink.problem.empty() ? sink.problem
                   : message[0] != '\0'  ? message.data()
                                         : curl_easy_strerror(code);
  return result;
}

/// Downloads a file from one URL and compares it; returns the problem, or "". The part is never
/// removed, since it may be locked: another process would lock the next one.
std::string download_from(const std::string& url, const WantedFile& file) {
  const fs::path part = part_of(file.place);
  while (true) {
    const bool resumes = has_bytes(part);
    const DownloadResult result = download_rest(url, file, part);
    // The next try resumes from the received bytes.
    if (!result.problem.empty() && !result.cannot_resume) return result.problem;
    const std::string problem = result.problem.empty() ? file.problem_of(part) : result.problem;
    if (problem.empty()) return "";
    fs::resize_file(part, 0);
    // The first bytes may be from another server or corrupt: a second try starts without them.
    if (!resumes) return problem;
  }
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

/// Downloads a file to part_of(file.place) from the first of spec.urls that has it. What an earlier
/// try left is resumed, and thrown away where the whole then is wrong. Returns the URL and the
/// problem of every try, or "" on success; then what arrived stays for the next try where it may be
/// right.
std::string download(const DatasetSpec& spec, const WantedFile& file) {
  if (spec.urls.empty()) return "its description has no URL";
  std::vector<std::string> problems;
  for (const std::string& folder : spec.urls) {
    const std::string url = folder + (folder.ends_with('/') ? "" : "/") + file.name;
    const std::string problem = download_from(url, file);
    if (problem.empty()) return "";
    problems.push_back(fmt::format("{}: {}", url, problem));
  }
  if (!has_bytes(part_of(file.place))) fs::remove(part_of(file.place));
  return fmt::format("{}", fmt::join(problems, "; "));
}

/// Sets aside what is at `place`, if anything, and prints its new name: someone may have put it
/// there.
void make_room(const fs::path& place) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(place, error))) return;
  const fs::path kept = set_aside(place, "old");
  log_warning("{}: the content differs from its description; it is kept as {}", place.string(),
              kept.filename().string());
}

/// Renames a downloaded file to its place and syncs that; what is there already is set aside.
void install(const fs::path& place) {
  const fs::path part = part_of(place);
  make_room(place);
  std::error_code error;
  fs::rename(part, place, error);
  if (error) fail("{}: cannot be renamed: {}", part.string(), error.message());
  sync_path(place.parent_path());
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
    for (const RequiredPath& part : format_of(spec).parts(spec, split)) {
      const std::string name = part.is_folder ? part.path + "/" : part.path;
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Downloads a file; `name` is that of messages.
void fetch_part(const DatasetSpec& spec, const std::string& name, const WantedFile& file) {
  const std::string problems = download(spec, file);
  if (problems.empty()) return;
  fail("dataset '{}': cannot fetch {}: {}; or put these by hand into {}: {}", spec.name, name,
       problems, fetch_folder(spec).string(), contents(spec));
}

/// Compares the whole file with the description of the archive; returns the problem, or "".
std::string compare_archive(const fs::path& path, const DatasetArchive& archive) {
  const bool by_sha = !archive.sha256.empty();
  const std::string found = by_sha ? sha256_file_hex(path) : md5_file_hex(path);
  const std::string& expected = by_sha ? archive.sha256 : archive.md5;
  if (found == expected) return "";
  return fmt::format("{} is {}, expected {}", by_sha ? "SHA-256" : "MD5", found, expected);
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

FetchResult fetch_by_archive(const DatasetSpec& spec, FetchResult result,
                             const FetchOptions& options) {
  const fs::path folder = result.folder.parent_path();
  make_data_folder(folder);
  const LockFile lock(folder);
  remove_leftovers(folder);
  const DatasetArchive& archive = *spec.archive;
  const fs::path part = part_of(folder / archive.name);
  fetch_part(spec, archive.name,
             {archive.name, folder / archive.name, static_cast<uint64_t>(archive.max_size),
              options.progress ? archive.name : "",
              [&](const fs::path& path) { return compare_archive(path, archive); }});
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
    fail("dataset '{}': its description has no URL to fetch from; place or link it at {}: {}",
         spec.name, fetch_folder(spec).string(), contents(spec));
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
    fetch_part(spec, file.name,
               {file.name + ".gz", place, max_packed_bytes(file), options.progress ? file.name : "",
                [&file = file](const fs::path& path) { return compare_file(path, file); }});
    install(place);
    result.fetched.push_back(file.name);
  }
  log_info("dataset '{}': fetched {} of {} to {}{}", spec.name, result.fetched.size(),
           count_text(static_cast<int64_t>(spec.files.size()), "file"), result.folder.string(),
           result.unhashed.empty() ? ", verified" : "");
  return result;
}

}  // namespace

fs::path part_of(const fs::path& file) {
  constexpr std::size_t kMost = 255, kAdded = sizeof("..moesaic.part") - 1;
  std::string name = file.filename().string();
  if (name.size() > kMost - kAdded) {  // Its own hash tells it from others that begin alike.
    const std::string hash = sha256_hex(std::as_bytes(std::span(name))).substr(0, 16);
    name = name.substr(0, kMost - kAdded - hash.size()) + hash;
  }
  return file.parent_path() / fmt::format(".{}.moesaic.part", name);
}

void fetch_shared(const DatasetSpec& spec, const WantedFile& file) {
  const fs::path folder = file.place.parent_path(), part = part_of(file.place);
  make_data_folder(folder);
  const auto [lock, not_locked] = open_locked(part, LOCK_EX);  // Waits for another process's fetch.
  if (not_locked != 0) fail_errno(part, "cannot be locked", not_locked);
  std::error_code error;
  if (fs::is_regular_file(file.place, error) && file.problem_of(file.place).empty()) {
    fs::remove(part, error);
    return;
  }
  const std::string problems = download(spec, file);
  if (problems.empty()) return install(file.place);
  fail("dataset '{}': cannot fetch {}: {}; or put it by hand into {}", spec.name, file.name,
       problems, folder.string());
}

FetchResult DatasetSource::fetch(const FetchOptions& options) const {
  FetchResult all;
  for (const DatasetSpec& spec : files()) {
    if (spec.generated()) continue;
    if (base_) log_info("dataset '{}' is made from the files of '{}'", name_, spec.name);
    const FetchResult one = fetch_files(spec, options);
    if (all.folder.empty()) all.folder = one.folder;
    all.fetched.insert(all.fetched.end(), one.fetched.begin(), one.fetched.end());
    all.unhashed.insert(all.unhashed.end(), one.unhashed.begin(), one.unhashed.end());
  }
  return all;
}

}  // namespace moesaic
