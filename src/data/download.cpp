// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/progress.h"

namespace moesaic {
namespace {

constexpr long kConnectSeconds = 20;
constexpr long kStalledSeconds = 30;
constexpr long kStalledBytesPerSecond = 100;
constexpr long kMaxRedirects = 10;
constexpr long kHttpRangeNotSatisfiable = 416;

struct DownloadResult {
  std::string problem;         ///< Reason of a failure in one line; empty on success.
  bool cannot_resume = false;  ///< Whether the server cannot resume.
};

/// Target of libcurl's callbacks. No exception may pass through C code, so it is stored here.
struct Sink {
  const WantedFile& file;
  const std::filesystem::path& part;
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

template <class T>
void set(const Handle& handle, CURLoption option, T value) {
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

/// Returns the number of bytes from an earlier try; removes an empty file.
uint64_t bytes_left(const std::filesystem::path& part) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(part, error);
  if (error) return 0;
  if (bytes == 0) std::filesystem::remove(part);
  return bytes;
}

/// Opens or makes a part to append to it.
UniqueFd open_part(const std::filesystem::path& part) {
  struct stat found {};
  const bool exists = ::lstat(part.c_str(), &found) == 0;
  if (exists && (!S_ISREG(found.st_mode) || found.st_nlink != 1)) {
    fail("{}: a link or no file, which a download does not write to; remove it", part.string());
  }
  return open_file(part, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW);
}

/// Fetches the rest of a part, which is made if it is missing, and syncs it. On failure the
/// received bytes stay.
DownloadResult download_rest(const std::string& url, const WantedFile& file,
                             const std::filesystem::path& part) {
  const UniqueFd fd = open_part(part);
  const uint64_t start = std::filesystem::file_size(part);
  if (start > file.max_bytes) return {"what an earlier try left is too long", true};
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

/// Downloads a file from one URL and compares it; returns the problem, or "".
std::string download_from(const std::string& url, const WantedFile& file) {
  const std::filesystem::path part = part_of(file.place);
  while (true) {
    const bool resumes = bytes_left(part) > 0;
    const DownloadResult result = download_rest(url, file, part);
    if (!result.problem.empty() && !result.cannot_resume) {
      bytes_left(part);
      return result.problem;  // The next try resumes from the received bytes.
    }
    const std::string problem = result.problem.empty() ? file.problem_of(part) : result.problem;
    if (problem.empty()) return "";
    std::filesystem::remove(part);
    // The first bytes may be from another server or damaged: a second try starts without them.
    if (!resumes) return problem;
  }
}

/// Opens `part` and waits until no other process downloads to it.
UniqueFd locked_part(const std::filesystem::path& part) {
  while (true) {
    UniqueFd fd = open_part(part);
    while (::flock(fd.get(), LOCK_EX) != 0) {
      if (errno != EINTR) fail_errno(part, "cannot be locked");
    }
    struct stat own {
    }, named{};
    const bool same = ::fstat(fd.get(), &own) == 0 && ::stat(part.c_str(), &named) == 0 &&
                      own.st_ino == named.st_ino && own.st_dev == named.st_dev;
    if (same) return fd;  // Otherwise the one before has renamed or removed it.
  }
}

}  // namespace

std::filesystem::path part_of(const std::filesystem::path& file) {
  constexpr std::size_t kMost = 255, kAdded = sizeof("..moesaic.part") - 1;
  std::string name = file.filename().string();
  if (name.size() > kMost - kAdded) {  // Its own hash tells it from others that begin alike.
    const std::string hash = sha256_hex(std::as_bytes(std::span(name))).substr(0, 16);
    name = name.substr(0, kMost - kAdded - hash.size()) + hash;
  }
  return file.parent_path() / fmt::format(".{}.moesaic.part", name);
}

void make_data_folder(const std::filesystem::path& folder) {
  std::error_code error;
  create_folders(folder, error);
  if (error) {
    fail("{}: cannot be made: {}; MOESAIC_DATA may name a folder that can be written to",
         folder.string(), error.message());
  }
}

std::string download(const DatasetSpec& spec, const WantedFile& file) {
  if (spec.urls.empty()) return "its description has no URL";
  std::vector<std::string> problems;
  for (const std::string& folder : spec.urls) {
    const std::string url = folder + (folder.ends_with('/') ? "" : "/") + file.name;
    const std::string problem = download_from(url, file);
    if (problem.empty()) return "";
    problems.push_back(fmt::format("{}: {}", url, problem));
  }
  return fmt::format("{}", fmt::join(problems, "; "));
}

void make_room(const std::filesystem::path& place) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(place, error))) return;
  const std::filesystem::path kept = set_aside(place, "old");
  log_warning("{}: is not what is described; it is kept as {}", place.string(),
              kept.filename().string());
}

void install(const std::filesystem::path& place) {
  const std::filesystem::path part = part_of(place);
  make_room(place);
  std::error_code error;
  std::filesystem::rename(part, place, error);
  if (error) fail("{}: cannot be renamed: {}", part.string(), error.message());
  sync_path(place.parent_path());
}

void fetch_shared(const DatasetSpec& spec, const WantedFile& file) {
  const std::filesystem::path folder = file.place.parent_path(), part = part_of(file.place);
  make_data_folder(folder);
  const UniqueFd lock = locked_part(part);
  std::error_code error;
  if (std::filesystem::is_regular_file(file.place, error) && file.problem_of(file.place).empty()) {
    std::filesystem::remove(part, error);
    return;
  }
  const std::string problems = download(spec, file);
  if (problems.empty()) return install(file.place);
  if (std::filesystem::file_size(part, error) == 0) std::filesystem::remove(part, error);
  fail("dataset '{}': cannot fetch {}: {}; or put it by hand into {}", spec.name, file.name,
       problems, folder.string());
}

}  // namespace moesaic
