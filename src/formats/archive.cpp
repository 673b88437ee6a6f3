// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <span>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/posix.h"
#include "moesaic/base/text.h"
#include "tar_entry.h"

namespace fs = std::filesystem;

namespace moesaic {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 16;

struct CloseArchive {
  void operator()(archive* open) const { archive_read_free(open); }
};
using OpenArchive = std::unique_ptr<archive, CloseArchive>;

std::string reason_of(const OpenArchive& open) {
  const char* text = archive_error_string(open.get());
  std::string reason = text != nullptr ? text : "damaged";
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  return reason;
}

OpenArchive open_archive(const fs::path& path) {
  OpenArchive open(archive_read_new());
  if (open == nullptr) fail("{}: cannot unpack: out of memory", path.string());
  archive_read_support_filter_gzip(open.get());
  archive_read_support_filter_bzip2(open.get());
  archive_read_support_filter_xz(open.get());
  archive_read_support_format_tar(open.get());
  if (archive_read_open_filename(open.get(), path.c_str(), kBlockBytes) != ARCHIVE_OK) {
    fail("{}: not an archive that can be unpacked: {}", path.string(), reason_of(open));
  }
  return open;
}

/// Returns the entry's path relative to the output directory. Throws Error if it is unsafe.
fs::path safe_place(const fs::path& archive_path, archive_entry* entry) {
  const std::string name = entry_name(entry);
  const std::string refusal = entry_refusal(entry, name);
  if (!refusal.empty()) {
    fail("{}: entry {} {}: refused", archive_path.string(), printable(name), refusal);
  }
  return fs::path(name).lexically_normal();
}

/// State of unpacking one archive into one directory.
class Unpacking {
 public:
  Unpacking(const fs::path& archive_path, const fs::path& folder, const UnpackLimits& limits)
      : path_(archive_path), folder_(folder), limits_(limits), open_(open_archive(archive_path)) {}

  std::vector<std::string> run() {
    archive_entry* entry = nullptr;
    for (int64_t count = 0; next(&entry); ++count) {
      if (count == limits_.entries) fail("{}: more than {} entries", path_.string(), count);
      const fs::path place = safe_place(path_, entry);
      if (archive_entry_filetype(entry) == AE_IFDIR) {
        make_folders(folder_ / place);
      } else {
        make_folders((folder_ / place).parent_path());
        write_file(place);
        names_.push_back(place.string());
      }
    }
    std::sort(names_.begin(), names_.end());
    return names_;
  }

 private:
  bool next(archive_entry** entry) {
    const int result = archive_read_next_header(open_.get(), entry);
    if (result == ARCHIVE_EOF) return false;
    if (result != ARCHIVE_OK) fail("{}: cannot be unpacked: {}", path_.string(), reason_of(open_));
    return true;
  }

  void make_folders(const fs::path& folder) const {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail("{}: cannot be made: {}", without_staging(folder).string(), error.message());
  }

  void write_file(const fs::path& place) {
    const fs::path target = folder_ / place;
    // O_EXCL prevents writing through a duplicate entry or an existing link.
    const UniqueFd fd = open_file(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    std::vector<std::byte> block(kBlockBytes);
    while (true) {
      const la_ssize_t count = archive_read_data(open_.get(), block.data(), block.size());
      if (count == 0) return;
      if (count < 0) {
        fail("{}: entry {} cannot be unpacked: {}", path_.string(), printable(place.string()),
             reason_of(open_));
      }
      written_ += count;
      if (written_ > limits_.bytes) {
        fail("{}: more than {} bytes unpacked", path_.string(), limits_.bytes);
      }
      write_all(fd.get(), std::span(block).first(static_cast<size_t>(count)), target);
    }
  }

  const fs::path path_, folder_;
  const UnpackLimits limits_;
  OpenArchive open_;
  int64_t written_ = 0;
  std::vector<std::string> names_;
};

}  // namespace

std::vector<std::string> unpack_archive(const fs::path& archive, const fs::path& folder,
                                        const UnpackLimits& limits) {
  return Unpacking(archive, folder, limits).run();
}

}  // namespace moesaic
