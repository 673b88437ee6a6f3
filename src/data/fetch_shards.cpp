// SPDX-License-Identifier: Apache-2.0
#include "fetch_shards.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "download.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/posix.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

/// Max number of bytes of a shard whose size is not described.
constexpr uint64_t kMaxShardBytes = uint64_t{1} << 40;

/// Opens `part` and waits until no other process downloads to it.
UniqueFd locked_part(const fs::path& part) {
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

using ProblemOf = std::function<std::string(const fs::path&)>;

/// What to download, and how to tell whether it is right.
struct WantedFile {
  std::string name;
  fs::path path;
  uint64_t max_bytes;
  ProblemOf problem_of;
};

void fetch_wanted(const DatasetSpec& spec, const WantedFile& file, bool progress) {
  const fs::path folder = file.path.parent_path();
  std::error_code error;
  create_folders(folder, error);
  if (error) {
    fail("{}: cannot be made: {}; MOESAIC_DATA may name a folder that can be written to",
         folder.string(), error.message());
  }
  const fs::path part = part_of(file.path);
  const UniqueFd lock = locked_part(part);
  if (fs::is_regular_file(file.path, error) && file.problem_of(file.path).empty()) {
    fs::remove(part, error);
    return;
  }
  std::vector<std::string> problems;
  for (const std::string& base : spec.urls) {
    const std::string url = join_url(base, file.name);
    const std::string problem =
        download_checked({url, part, file.max_bytes, progress ? file.name : ""}, file.problem_of);
    if (problem.empty()) return install(part, file.path);
    problems.push_back(fmt::format("{}: {}", url, problem));
  }
  if (fs::file_size(part, error) == 0) fs::remove(part, error);
  fail("dataset '{}': cannot fetch {}: {}; or put it by hand into {}", spec.name, file.name,
       fmt::join(problems, "; "), folder.string());
}

}  // namespace

void fetch_shard(const DatasetSpec& spec, const PlacedShard& shard, bool progress) {
  const ShardFile& file = shard.described;
  const uint64_t max = file.size > 0 ? static_cast<uint64_t>(file.size) : kMaxShardBytes;
  fetch_wanted(
      spec,
      {file.name, shard.path, max, [&](const fs::path& path) { return shard_problem(path, file); }},
      progress);
}

void fetch_class_names(const DatasetSpec& spec, const std::string& name, const fs::path& path,
                       uint64_t max_bytes) {
  const auto problem_of = [](const fs::path& file) {
    std::error_code error;
    return fs::file_size(file, error) > 0 && !error ? std::string() : "it is empty";
  };
  fetch_wanted(spec, {name, path, max_bytes, problem_of}, /*progress=*/false);
}

}  // namespace moesaic
