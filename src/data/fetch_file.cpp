// SPDX-License-Identifier: Apache-2.0
// Downloads that are resumed, tried again, compared and put in place.
#include "moesaic/data/fetch_file.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <system_error>

#include "files.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"
#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/progress.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr long kConnectSeconds = 20;
constexpr long kStalledSeconds = 30;
constexpr long kStalledBytesPerSecond = 1024;
constexpr long kMaxRedirects = 10;
constexpr long kHttpRangeNotSatisfiable = 416;
constexpr int kMaxRetries = 5;
constexpr curl_off_t kMaxWaitSeconds = 600;
/// So many new bytes are a success after which retries are counted anew.
constexpr uint64_t kProgressBytes = uint64_t{1} << 20;
constexpr std::string_view kHub = "hf://", kHubData = "hf://datasets/";

/// What a server tells of a whole file; what it does not is 0 or empty.
struct Told {
  int64_t size = 0;
  std::string sha256, md5, crc32c;
};

struct DownloadResult {
  std::string problem;          ///< Reason of a failure in one line; empty on success.
  bool cannot_resume = false;   ///< Whether the server cannot resume.
  bool transient = false;       ///< Whether the problem may be over at the next try.
  curl_off_t wait_seconds = 0;  ///< How long the server wants not to be asked.
  Told told = {};
};

uint64_t max_bytes_of(const FetchRequest& request) {
  if (request.size > 0) return static_cast<uint64_t>(request.size);
  return request.max_bytes > 0 ? request.max_bytes : uint64_t{1} << 40;
}

/// Target of libcurl's callbacks. No exception may pass through C code, so it is stored here.
struct Sink {
  const FetchRequest& request;
  const fs::path& part;
  CURL* handle;
  int fd;
  uint64_t start;  ///< Number of bytes from an earlier try.
  uint64_t written;
  std::string problem;
  std::optional<Progress> progress;
};

/// Throws where the whole file would have another size than what is wanted.
void check_offer(const Sink& sink) {
  curl_off_t rest = -1;
  curl_easy_getinfo(sink.handle, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &rest);
  const int64_t offered = static_cast<int64_t>(sink.start) + rest;
  if (rest < 0 || sink.request.size == 0 || offered == sink.request.size) return;
  fail("the server offers {} bytes, expected {}", offered, sink.request.size);
}

size_t on_data(char* data, size_t size, size_t count, void* user) noexcept {
  Sink& sink = *static_cast<Sink*>(user);
  const size_t bytes = size * count;
  try {
    if (sink.written == sink.start) check_offer(sink);
    const uint64_t max = max_bytes_of(sink.request);
    if (bytes > max - sink.written) {
      fail("the file is longer than the {} bytes that it may have", max);
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
  const auto start = static_cast<int64_t>(sink.start);
  try {
    if (!sink.progress) {
      sink.progress.emplace(
          ProgressOptions{.label = sink.request.label, .unit = "bytes", .start = start});
    }
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

std::string token_name(const FetchRequest& request) {
  if (!request.token_env.empty()) return request.token_env;
  return request.url.starts_with(kHub) ? "HF_TOKEN" : "";
}

/// Returns the token to send, "" for none.
std::string token_of(const FetchRequest& request) {
  const std::string name = token_name(request);
  const char* const value = name.empty() ? nullptr : std::getenv(name.c_str());
  const std::string token = value == nullptr ? "" : value;
  const auto odd = [](unsigned char c) { return c <= 0x20 || c >= 0x7f; };
  if (std::ranges::any_of(token, odd)) {
    fail_usage("environment variable {}: it holds a blank or another character that no token has",
               name);
  }
  return token;
}

/// Throws Error (usage) where a token would leave this machine without encryption.
void check_encryption(const std::string& url, const FetchRequest& request) {
  constexpr std::string_view kPlain = "http://";
  if (!url.starts_with(kPlain)) return;
  const std::string host = url.substr(kPlain.size());
  for (const char* here : {"127.", "localhost:", "localhost/", "[::1]"}) {
    if (host.starts_with(here)) return;
  }
  fail_usage("{}: the token in {} is sent over https only; give an https address", url,
             token_name(request));
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
  if (const std::string token = token_of(sink.request); !token.empty()) {
    check_encryption(url, sink.request);
    // libcurl drops both where it is redirected to another host, port or protocol.
    set(handle, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set(handle, CURLOPT_XOAUTH2_BEARER, token.c_str());
  }
  if (sink.request.label.empty()) return;
  set(handle, CURLOPT_NOPROGRESS, 0L);
  set(handle, CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(handle, CURLOPT_XFERINFODATA, static_cast<void*>(&sink));
}

/// Returns the values of a header in all answers, those that redirect included.
std::string header_of(const Handle& handle, const char* name) {
  long redirects = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_REDIRECT_COUNT, &redirects);
  std::string values;
  for (int answer = 0; answer <= redirects; ++answer) {
    curl_header* found = nullptr;
    for (size_t i = 0;
         curl_easy_header(handle.get(), name, i, CURLH_HEADER, answer, &found) == CURLHE_OK; ++i) {
      values += std::string(found->value) + ",";
    }
  }
  return values;
}

/// Returns the hash of so many bytes, at most 16, after `name` in hex digits; "" where it is not
/// there in base64.
std::string hash_after(const std::string& name, size_t count, const std::string& hashes) {
  const size_t at = hashes.find(name), length = (count + 2) / 3 * 4;
  if (at == hashes.npos) return "";
  const std::string text = hashes.substr(at + name.size(), length);
  std::array<unsigned char, 18> bytes{};
  const auto* const encoded = reinterpret_cast<const unsigned char*>(text.data());
  if (text.size() != length ||
      EVP_DecodeBlock(bytes.data(), encoded, static_cast<int>(length)) < 0) {
    return "";
  }
  return fmt::format("{:02x}", fmt::join(std::span(bytes).first(count), ""));
}

/// Returns what Hugging Face (SHA-256 and size) and Google Cloud Storage (CRC-32C, and MD5 unless
/// the file was put together from parts) tell of a file.
Told told_by(const Handle& handle) {
  Told told;
  const std::string tag = header_of(handle, "X-Linked-ETag");
  if (tag.size() > 66 && tag[0] == '"' && hash_problem("", tag.substr(1, 64), 64).empty()) {
    told.sha256 = tag.substr(1, 64);
    told.size = std::strtoll(header_of(handle, "X-Linked-Size").c_str(), nullptr, 10);
  }
  const std::string hashes = header_of(handle, "X-Goog-Hash");
  told.md5 = hash_after("md5=", 16, hashes);
  told.crc32c = hash_after("crc32c=", 4, hashes);
  return told;
}

/// Returns the number of bytes from earlier tries.
uint64_t bytes_of(const fs::path& part) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(part, error);
  return error ? 0 : bytes;
}

bool is_transient_answer(CURLcode code, long status) {
  if (code == CURLE_HTTP_RETURNED_ERROR) return status == 408 || status == 429 || status >= 500;
  constexpr std::array kBroken = {CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_CONNECT,
                                  CURLE_PARTIAL_FILE,         CURLE_OPERATION_TIMEDOUT,
                                  CURLE_GOT_NOTHING,          CURLE_SEND_ERROR,
                                  CURLE_RECV_ERROR,           CURLE_HTTP2,
                                  CURLE_HTTP2_STREAM,         CURLE_SSL_CONNECT_ERROR};
  return std::ranges::count(kBroken, code) > 0;
}

/// Returns what to do about an answer that refuses, as a part of a line.
std::string token_hint(const FetchRequest& request, long status) {
  if (status != 401 && status != 403) return "";
  const std::string name = token_name(request);
  if (name.empty()) return "; 'token_env' may name an environment variable with a token";
  return token_of(request).empty() ? "; environment variable " + name + " may hold a token"
                                   : "; the token in " + name + " is refused";
}

/// Fetches the rest of a part, which is made if it is missing, and syncs it. On failure the
/// received bytes stay.
DownloadResult download_rest(const std::string& url, const FetchRequest& request,
                             const fs::path& part) {
  const UniqueFd fd = open_without_links(part, O_WRONLY | O_APPEND);
  const uint64_t start = fs::file_size(part);
  if (start > max_bytes_of(request)) return {"the file of an earlier attempt is too long", true};
  const Handle handle = make_handle();
  Sink sink{request, part, handle.get(), fd.get(), start, start, "", std::nullopt};
  std::array<char, CURL_ERROR_SIZE> message{};
  set_up(handle, url, sink, message.data());
  const CURLcode code = curl_easy_perform(handle.get());
  if (sink.progress) sink.progress->finish();
  sync_fd(fd.get(), part);
  DownloadResult result;
  const Told& told = result.told = told_by(handle);
  long status = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  // A part to which nothing can be added is the file, or that of another one.
  const bool comparable =
      request.size > 0 || request.problem_of || told.size > 0 ||
      !(request.sha256 + request.md5 + told.sha256 + told.md5 + told.crc32c).empty();
  if (code == CURLE_OK && (status != kHttpRangeNotSatisfiable || comparable)) return result;
  curl_easy_getinfo(handle.get(), CURLINFO_RETRY_AFTER, &result.wait_seconds);
  result.cannot_resume = status == kHttpRangeNotSatisfiable || code == CURLE_RANGE_ERROR ||
                         code == CURLE_BAD_DOWNLOAD_RESUME;
  result.transient = sink.problem.empty() && is_transient_answer(code, status);
  result.problem = !sink.problem.empty() ? sink.problem
                   : message[0] != '\0'  ? message.data()
                                         : curl_easy_strerror(code);
  result.problem += token_hint(request, status);
  return result;
}

/// Compares a file with what is wanted, or else with what the server told; returns the problem, or
/// "".
std::string compare(const fs::path& path, const FetchRequest& request, const Told& told) {
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  const int64_t size = request.size > 0 ? request.size : told.size;
  if (size > 0 && bytes != size) return fmt::format("{} bytes, expected {}", bytes, size);
  const bool has_hash = !(request.sha256 + request.md5).empty();
  const std::string& sha256 = has_hash ? request.sha256 : told.sha256;
  const std::string& md5 = has_hash ? request.md5 : told.md5;
  const auto problem = [](const char* name, const std::string& found, const std::string& expected) {
    return found == expected ? "" : fmt::format("{} is {}, expected {}", name, found, expected);
  };
  std::string wrong;
  if (!sha256.empty()) {
    wrong = problem("SHA-256", sha256_file_hex(path), sha256);
  } else if (!md5.empty()) {
    wrong = problem("MD5", md5_file_hex(path), md5);
  } else if (!told.crc32c.empty()) {
    const uint32_t found = crc32c(MappedFile(path).bytes());
    wrong = problem("CRC-32C", fmt::format("{:08x}", found), told.crc32c);
  }
  if (!wrong.empty()) return wrong;
  return request.problem_of ? request.problem_of(path) : "";
}

/// Downloads a file and compares it; returns the problem, or "". The part is never removed, since
/// it may be locked: another process would lock the next one.
std::string download_from(const FetchRequest& request) {
  const std::string url = resolved_url(request.url);
  const fs::path part = partial_path(request.path);
  uint64_t most = bytes_of(part);
  int retries = 0;
  const auto may_retry = [&] {
    if (const uint64_t bytes = bytes_of(part); bytes >= most + kProgressBytes) {
      most = bytes;
      retries = 0;
    }
    return retries++ < kMaxRetries;
  };
  while (true) {
    const bool resumes = bytes_of(part) > 0;
    const DownloadResult result = download_rest(url, request, part);
    if (result.transient && request.pause && may_retry()) {
      const auto wait = std::max<curl_off_t>(1 << (retries - 1), result.wait_seconds);
      if (wait > kMaxWaitSeconds) {
        return fmt::format("{}; the server asks to wait for {} s", result.problem, wait);
      }
      log_warning("{}: {}; retrying in {} s", url, result.problem, wait);
      request.pause(std::chrono::seconds(wait));
      continue;
    }
    // The next call resumes from the received bytes.
    if (!result.problem.empty() && !result.cannot_resume) return result.problem;
    const std::string problem =
        result.problem.empty() ? compare(part, request, result.told) : result.problem;
    if (problem.empty()) return "";
    fs::resize_file(part, 0);
    // The first bytes may be from another server or corrupt: a further try starts without them.
    if (!resumes || !may_retry()) return problem;
  }
}

}  // namespace

std::string url_problem(const std::string& url) {
  return has_secret(url)
             ? "an address holds a password or a token, which messages would show; put the "
               "secret into HF_TOKEN or the environment variable that 'token_env' names"
             : "";
}

std::string resolved_url(const std::string& url) {
  if (const std::string problem = url_problem(url); !problem.empty()) fail_usage("{}", problem);
  if (!url.starts_with(kHub)) return url;
  const bool data = url.starts_with(kHubData);
  const std::string rest = url.substr(data ? kHubData.size() : kHub.size());
  const size_t owner = rest.find('/');
  const size_t slash = owner == rest.npos ? owner : rest.find('/', owner + 1);
  const size_t at = std::min(rest.find('@'), slash);
  const auto odd = [](unsigned char c) { return c <= 0x20 || c >= 0x7f || c == '?' || c == '#'; };
  if (slash == rest.npos || slash + 1 == rest.size() || std::ranges::any_of(rest, odd) ||
      at < owner || !is_portable_name(rest.substr(0, owner)) ||
      !is_portable_name(rest.substr(owner + 1, at - owner - 1)) || at + 1 == slash) {
    fail_usage("'{}': an address of Hugging Face is hf://[datasets/]OWNER/NAME[@REVISION]/PATH",
               url);
  }
  const char* const other = std::getenv("HF_ENDPOINT");
  std::string endpoint = other == nullptr || *other == '\0' ? "https://huggingface.co" : other;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (!url_problem(endpoint).empty() || !endpoint.starts_with("http")) {
    fail_usage(
        "environment variable HF_ENDPOINT: must be a web address, free of passwords and tokens");
  }
  return fmt::format("{}/{}{}/resolve/{}{}", endpoint, data ? "datasets/" : "", rest.substr(0, at),
                     at == slash ? "main" : rest.substr(at + 1, slash - at - 1),
                     rest.substr(slash));
}

fs::path partial_path(const fs::path& file) {
  constexpr std::size_t kMost = 255, kAdded = sizeof("..moesaic.part") - 1;
  std::string name = file.filename().string();
  if (name.size() > kMost - kAdded) {  // Its own hash tells it from others that begin alike.
    const std::string hash = sha256_hex(std::as_bytes(std::span(name))).substr(0, 16);
    name = name.substr(0, kMost - kAdded - hash.size()) + hash;
  }
  return file.parent_path() / fmt::format(".{}.moesaic.part", name);
}

void make_room(const fs::path& place) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(place, error))) return;
  const fs::path kept = set_aside(place, "old");
  log_warning("{}: the content differs from the description and is kept as {}", place.string(),
              kept.filename().string());
}

void install(const fs::path& place) {
  const fs::path part = partial_path(place);
  make_room(place);
  std::error_code error;
  fs::rename(part, place, error);
  if (error) fail("{}: cannot be renamed: {}", part.string(), error.message());
  sync_path(place.parent_path());
}

std::string download(FetchRequest request, const std::vector<std::string>& urls) {
  std::vector<std::string> problems;
  const SleepFunction pause = request.pause;
  for (const std::string& url : urls) {
    request.url = url;
    request.pause = &url == &urls.back() ? pause : SleepFunction();  // There is another one.
    const std::string problem = download_from(request);
    if (problem.empty()) return "";
    problems.push_back(fmt::format("{}: {}", url, problem));
  }
  if (bytes_of(partial_path(request.path)) == 0) fs::remove(partial_path(request.path));
  return fmt::format("{}", fmt::join(problems, "; "));
}

std::string fetch_first(const FetchRequest& request, const std::vector<std::string>& urls) {
  const fs::path part = partial_path(request.path);
  const auto [lock, not_locked] = open_locked(part, LOCK_EX);  // Waits for another process's fetch.
  if (not_locked != 0) fail_errno(part, "cannot be locked", not_locked);
  std::error_code error;
  if (fs::is_regular_file(request.path, error) && compare(request.path, request, {}).empty()) {
    fs::remove(part, error);
    return "";
  }
  std::string problems = download(request, urls);
  if (problems.empty()) install(request.path);
  return problems;
}

void fetch_file(const FetchRequest& request) {
  resolved_url(request.url);  // Before anything is made.
  std::error_code error;
  create_folders(request.path.parent_path(), error);
  if (error) fail("{}: cannot be made: {}", request.path.parent_path().string(), error.message());
  const std::string problem = fetch_first(request, {request.url});
  if (!problem.empty()) fail("{}: cannot be fetched: {}", request.path.string(), problem);
}

}  // namespace moesaic
