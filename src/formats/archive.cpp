// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

using ArchiveReader = std::unique_ptr<archive, int (*)(archive*)>;

ArchiveReader new_reader() {
  return {archive_read_new(), &archive_read_free};
}

std::string last_reason(archive* open) {
  const char* text = archive_error_string(open);
  constexpr size_t kLongest = 400;  // It may name a path.
  return one_line(text != nullptr ? text : "corrupt", kLongest);
}

/// Returns the name of an entry; empty without one.
std::string entry_name(archive_entry* entry) {
  const char* text = archive_entry_pathname(entry);
  if (text == nullptr) text = archive_entry_pathname_utf8(entry);
  return text != nullptr ? text : "";
}

/// Returns why an entry of this name is not safe to take, e.g. "is a link"; "" for files and
/// folders below the archive's root.
std::string entry_refusal(archive_entry* entry, const std::string& name) {
  if (name.empty()) return "has no name";
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(name, control)) return "has control characters in its name";
  const fs::path place(name);
  if (place.is_absolute()) return "has an absolute path";
  if (std::ranges::any_of(place, [](const auto& part) { return part == ".."; })) {
    return "leads out of the folder";
  }
  if (archive_entry_hardlink(entry) != nullptr || archive_entry_symlink(entry) != nullptr) {
    return "is a link";
  }
  const auto type = archive_entry_filetype(entry);
  return type == AE_IFREG || type == AE_IFDIR ? "" : "is neither a file nor a folder";
}

constexpr size_t kBlockBytes = size_t{1} << 16;

ArchiveReader open_archive(const fs::path& path) {
  ArchiveReader open = new_reader();
  if (open == nullptr) fail("{}: cannot unpack: out of memory", path.string());
  archive_read_support_filter_gzip(open.get());
  archive_read_support_filter_bzip2(open.get());
  archive_read_support_filter_xz(open.get());
  archive_read_support_format_tar(open.get());
  if (archive_read_open_filename(open.get(), path.c_str(), kBlockBytes) != ARCHIVE_OK) {
    fail("{}: not an archive that can be unpacked: {}", path.string(), last_reason(open.get()));
  }
  return open;
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("{}: cannot be made: {}", without_staging(folder).string(), error.message());
}

/// Few bytes around each header: contents are skipped.
constexpr size_t kHeaderBlockBytes = 10240;
constexpr size_t kMaxEntryNameBytes = 4096;

/// Throws IoError where the last call failed for want of the file and not by what is in it.
void check_was_read(archive* open, const fs::path& path) {
  const int error = archive_errno(open);
  // libarchive marks what is wrong with a file by these, and by a negative number.
  if (error > 0 && error != EILSEQ && error != EINVAL) fail_errno(path, "cannot be read", error);
}

void refuse_compressed(const fs::path& path) {
  constexpr std::pair<std::string_view, const char*> kHeads[] = {
      {"\x1f\x8b", "gzip"},
      {"\xfd\x37zXZ", "xz"},
      {"\x28\xb5\x2f\xfd", "zstd"},
  };
  constexpr std::string_view kBzip = "BZh", kBzipBlock = "\x31\x41\x59\x26\x53\x59";
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::array<char, 10> head{};
  const ssize_t count = ::pread(fd.get(), head.data(), head.size(), 0);
  if (count < 0) fail_errno(path, "cannot be read");
  const std::string_view start(head.data(), static_cast<size_t>(count));
  const auto refuse = [&](const char* by) {
    fail("{}: compressed by {}; unpack it to a plain .tar, whose members are read in place",
         path.string(), by);
  };
  for (const auto& [begin, by] : kHeads) {
    if (start.starts_with(begin)) refuse(by);
  }
  // A tar begins with a name, which may be "BZh" and a digit too.
  if (start.starts_with(kBzip) && start.ends_with(kBzipBlock)) refuse("bzip2");
}

}  // namespace

void unpack_archive(const fs::path& archive, const fs::path& folder, const UnpackLimits& limits) {
  const std::string path = archive.string();
  const ArchiveReader open = open_archive(archive);
  std::vector<std::byte> block(kBlockBytes);
  archive_entry* entry = nullptr;
  int64_t written = 0;
  for (int64_t count = 0;; ++count) {
    const int result = archive_read_next_header(open.get(), &entry);
    if (result == ARCHIVE_EOF) break;
    if (result != ARCHIVE_OK) fail("{}: cannot be unpacked: {}", path, last_reason(open.get()));
    if (count == limits.max_entries) fail("{}: more than {} entries", path, count);
    const std::string name = entry_name(entry), refusal = entry_refusal(entry, name);
    if (!refusal.empty()) fail("{}: entry {} {}: refused", path, printable(name), refusal);
    const fs::path place = fs::path(name).lexically_normal(), target = folder / place;
    if (archive_entry_filetype(entry) == AE_IFDIR) {
      make_folders(target);
      continue;
    }
    make_folders(target.parent_path());
    // O_EXCL prevents writing through a duplicate entry or an existing link.
    const UniqueFd fd = open_file(target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    while (const la_ssize_t got = archive_read_data(open.get(), block.data(), block.size())) {
      if (got < 0) {
        fail("{}: entry {} cannot be unpacked: {}", path, printable(place.string()),
             last_reason(open.get()));
      }
      written += got;
      if (written > limits.max_bytes) {
        fail("{}: more than {} bytes unpacked", path, limits.max_bytes);
      }
      write_all(fd.get(), std::span(block).first(static_cast<size_t>(got)), target);
    }
  }
}

TarIndex index_tar(const fs::path& path) {
  refuse_compressed(path);
  const ArchiveReader open = new_reader();
  if (open == nullptr) fail("{}: cannot be read: out of memory", path.string());
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error) fail_errno(path, "cannot be read", error.value());
  TarIndex index;
  const auto cut = [&](std::string text, std::string member = "") {
    index.problems.push_back({std::move(member), std::move(text)});
    index.is_truncated = true;
    return index;
  };
  archive_read_support_format_tar(open.get());
  if (archive_read_open_filename(open.get(), path.c_str(), kHeaderBlockBytes) != ARCHIVE_OK) {
    check_was_read(open.get(), path);
    return cut(fmt::format("not a tar archive: {}", last_reason(open.get())));
  }
  std::unordered_set<std::string> names;
  archive_entry* entry = nullptr;
  while (bytes > 0) {
    const int result = archive_read_next_header(open.get(), &entry);
    if (result == ARCHIVE_EOF) break;
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      check_was_read(open.get(), path);
      return cut(fmt::format("corrupt after {}: {}", count_text(std::ssize(index.members), "file"),
                             last_reason(open.get())));
    }
    const std::string name = entry_name(entry);
    const int64_t offset = archive_filter_bytes(open.get(), 0);
    const bool file = archive_entry_filetype(entry) == AE_IFREG;
    const int64_t size = file && archive_entry_size_is_set(entry) ? archive_entry_size(entry) : 0;
    if (size < 0 || offset < 0 || offset > bytes || size > bytes - offset) {
      return cut(fmt::format("ends within entry {}, of {} bytes", printable(name), size), name);
    }
    std::string why = entry_refusal(entry, name);
    if (why.empty() && name.size() > kMaxEntryNameBytes) why = "has too long a name";
    if (why.empty() && archive_entry_sparse_count(entry) > 0) why = "is sparse";
    const std::string normal = fs::path(name).lexically_normal().string();
    if (why.empty() && file && !names.insert(normal).second) why = "is there twice";
    if (!why.empty()) {
      index.problems.push_back({name, fmt::format("entry {} {}", printable(name), why)});
    } else if (file) {
      index.members.push_back({normal, offset, size});
    }
  }
  return index;
}

TarWriter::TarWriter(const fs::path& path)
    : path_(path),
      fd_(open_file(path, O_WRONLY | O_CREAT | O_EXCL)),
      open_(archive_write_new(), &archive_write_free),
      entry_(archive_entry_new(), &archive_entry_free) {
  if (open_ == nullptr || entry_ == nullptr) fail("{}: out of memory", path.string());
  check(archive_write_set_format_pax_restricted(open_.get()));
  check(archive_write_open_fd(open_.get(), fd_.get()));
}

void TarWriter::check(int64_t result) const {
  if (result >= ARCHIVE_OK || result == ARCHIVE_WARN) return;
  const int error = archive_errno(open_.get());
  fail("{}: cannot be written: {}", without_staging(path_).string(),
       error > 0 ? std::strerror(error) : last_reason(open_.get()));
}

void TarWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  archive_entry* const entry = archive_entry_clear(entry_.get());
  archive_entry_set_pathname(entry, name.c_str());
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_mtime(entry, 0, 0);
  archive_entry_set_size(entry, static_cast<int64_t>(bytes.size()));
  check(archive_write_header(open_.get(), entry));
  check(archive_write_data(open_.get(), bytes.data(), bytes.size()));
}

void TarWriter::close() {
  check(archive_write_close(open_.get()));
  sync_fd(fd_.get(), path_);
}

}  // namespace moesaic
