// SPDX-License-Identifier: Apache-2.0
// Zip archives, as far as the files that lie in one uncompressed. Archives are untrusted: nothing
// is dereferenced before it is checked, and nothing is unpacked.
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "moesaic/base/checked_math.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/text.h"
#include "moesaic/formats/archive.h"

namespace moesaic {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers of archives are little-endian");

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocator64Bytes = 20;
constexpr uint64_t kMaxComment = 65535;
constexpr uint32_t kIn64 = 0xFFFFFFFFu;  // The number is in the entry's zip64 field.

/// An entry of the archive's list.
struct Member {
  std::string_view name;
  uint16_t flags = 0, method = 0;
  uint32_t checksum = 0;
  uint64_t packed = 0, size = 0, local = 0;
};

class Archive {
 public:
  /// Finds the list of entries by the record at the archive's end, before a comment.
  Archive(std::span<const std::byte> file, const std::string& where) : bytes_(file), where_(where) {
    const uint64_t size = bytes_.size(), first = size - std::min(size, kEndBytes + kMaxComment);
    for (uint64_t at = size - std::min(size, kEndBytes) + 1; at-- > first;) {
      if (size - at < kEndBytes || number<uint32_t>(at) != kEnd) continue;
      uint64_t bytes = number<uint32_t>(at + 12);
      list_begin_ = number<uint32_t>(at + 16);
      if (list_begin_ == kIn64 || bytes == kIn64) bytes = read_end64(at);
      check(list_begin_, bytes);
      list_end_ = list_begin_ + bytes;
      return;
    }
    fail("{}: a corrupt archive: it has no list of its files", where_);
  }

  /// Returns the entry FOLDER/`name`.
  std::optional<Member> find(std::string_view wanted) const {
    std::optional<Member> found;
    for_each([&](const Member& member) {
      const size_t folder = member.name.find('/');
      const bool is_it = folder != member.name.npos && member.name.substr(folder + 1) == wanted;
      if (is_it && !found) found = member;
    });
    return found;
  }

  /// Calls `visit` with each entry.
  void for_each(const auto& visit) const {
    for (uint64_t at = list_begin_; at < list_end_;) {
      if (number<uint32_t>(at) != kCentral) damaged(at);
      const uint64_t name = number<uint16_t>(at + 28), extra = number<uint16_t>(at + 30);
      const uint64_t comment = number<uint16_t>(at + 32);
      Member member{text(at + kCentralBytes, name), number<uint16_t>(at + 8),
                    number<uint16_t>(at + 10),      number<uint32_t>(at + 16),
                    number<uint32_t>(at + 20),      number<uint32_t>(at + 24),
                    number<uint32_t>(at + 42)};
      widen(member, at + kCentralBytes + name, extra);
      visit(member);
      at += kCentralBytes + name + extra + comment;
    }
  }

  /// Returns the bytes of an entry, which lie behind a header of their own.
  std::span<const std::byte> content(const Member& member) const {
    constexpr unsigned kEncrypted = 1;
    if ((member.flags & kEncrypted) != 0 || member.method != 0 || member.packed != member.size) {
      fail("{}: {} in the archive is compressed or encrypted", where_, printable(member.name));
    }
    if (number<uint32_t>(member.local) != kLocal) damaged(member.local);
    const uint64_t begin = member.local + kLocalBytes + number<uint16_t>(member.local + 26) +
                           number<uint16_t>(member.local + 28);
    check(begin, member.size);
    return bytes_.subspan(begin, member.size);
  }

 private:
  [[noreturn]] void damaged(uint64_t at) const {
    fail("{}: a corrupt archive, at byte {}", where_, at);
  }

  void check(uint64_t at, uint64_t count) const {
    const auto end = checked_add(at, count);
    if (!end || *end > bytes_.size()) fail("{}: a corrupt archive: it is cut off", where_);
  }

  template <class T>
  T number(uint64_t at) const {
    check(at, sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }

  std::string_view text(uint64_t at, uint64_t count) const {
    check(at, count);
    return {reinterpret_cast<const char*>(bytes_.data()) + at, count};
  }

  /// Reads the record of large archives; returns the length of the list.
  uint64_t read_end64(uint64_t end) {
    const uint64_t locator = end - std::min(end, kLocator64Bytes);
    if (number<uint32_t>(locator) != kLocator64) damaged(locator);
    const auto record = number<uint64_t>(locator + 8);
    if (number<uint32_t>(record) != kEnd64) damaged(record);
    list_begin_ = number<uint64_t>(record + 48);
    return number<uint64_t>(record + 40);
  }

  /// Replaces numbers that are too large for the entry by those of its zip64 field.
  void widen(Member& member, uint64_t at, uint64_t count) const {
    constexpr uint16_t kZip64 = 1;
    check(at, count);
    const uint64_t end = at + count;
    while (end - at >= 4) {
      const auto kind = number<uint16_t>(at), length = number<uint16_t>(at + 2);
      at += 4;
      if (length > end - at) damaged(at);
      uint64_t next = at;
      for (uint64_t* const wide : {&member.size, &member.packed, &member.local}) {
        if (kind != kZip64 || *wide != kIn64) continue;
        if (next + 8 > at + length) damaged(at);
        *wide = number<uint64_t>(next);
        next += 8;
      }
      at += length;
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& where_;
  uint64_t list_begin_ = 0, list_end_ = 0;
};

}  // namespace

uint64_t verify_zip(const fs::path& path) {
  const MappedFile file(path);
  const std::string where = path.string();
  if (!is_zip(file.bytes())) fail("{}: not a zip archive", where);
  const Archive archive(file.bytes(), where);
  uint64_t bytes = 0;
  archive.for_each([&](const Member& member) {
    const std::span<const std::byte> content = archive.content(member);
    const auto* begin = reinterpret_cast<const Bytef*>(content.data());
    if (crc32_z(0, begin, content.size()) != member.checksum) {
      fail("{}: {} in the archive is damaged: its checksum differs", where, printable(member.name));
    }
    bytes += content.size();
  });
  return bytes;
}

bool is_zip(std::span<const std::byte> file) {
  uint32_t begin = 0;
  if (file.size() < sizeof(begin)) return false;
  std::memcpy(&begin, file.data(), sizeof(begin));
  return begin == kLocal;
}

bool is_in_zip(const fs::path& archive, std::string_view name) {
  const MappedFile file(archive);
  const std::string where = archive.string();
  return Archive(file.bytes(), where).find(name).has_value();
}

std::optional<std::span<const std::byte>> find_in_zip(std::span<const std::byte> bytes,
                                                      std::string_view name,
                                                      const std::string& where) {
  const Archive archive(bytes, where);
  const std::optional<Member> member = archive.find(name);
  if (!member) return std::nullopt;
  return archive.content(*member);
}

}  // namespace moesaic
