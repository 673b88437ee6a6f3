// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes header length, a JSON header, the tensors' bytes without gaps.
// Read from untrusted files: nothing is allocated or followed before it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/file.h"

namespace moesaic::safetensors {

/// Longest header that is read or written, as in the reference implementation.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// One tensor of a file. `dtype` is one of F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;  ///< empty for a scalar
  uint64_t begin = 0;          ///< in the data section
  uint64_t end = 0;
};

/// A mapped file whose header passed every check: length at most 100 MB and inside the file, valid
/// JSON and UTF-8, no duplicate name, known dtypes, size = shape x dtype, data covered from the
/// first to the last byte without hole or overlap. Otherwise Error(failure) in one line with the
/// path.
class File {
 public:
  explicit File(const std::filesystem::path& path);

  /// In the order of their bytes in the file.
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// nullptr when there is none of that name.
  const Entry* find(std::string_view name) const;
  /// The tensor's bytes, row-major and little-endian; valid while this object lives. Not
  /// necessarily aligned for the dtype.
  std::span<const std::byte> bytes(const Entry& entry) const;
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }

 private:
  MappedFile file_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  std::span<const std::byte> data_;
};

/// A tensor to be written: its bytes must hold exactly shape x dtype.
struct Item {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes atomically. The order is by size of dtype (largest first), then name, so every tensor is
/// aligned to its dtype and equal content gives equal files.
/// Throws Error(failure) for a duplicate or reserved name, a wrong size, text that is not UTF-8.
void write(const std::filesystem::path& path, std::vector<Item> items,
           const std::map<std::string, std::string>& metadata = {});

/// Gives a tensor's bytes, which must stay until the next call.
using Source = std::function<std::span<const std::byte>(const Item&)>;

/// The same file for tensors that are made one at a time: `source` is asked for each once, in the
/// order of the file; the items' own `bytes` are not looked at.
void write_streamed(const std::filesystem::path& path, std::vector<Item> items,
                    const Source& source, const std::map<std::string, std::string>& metadata = {});

/// Bytes of one element; Error(failure) for an unknown dtype.
std::size_t dtype_size(std::string_view dtype);

}  // namespace moesaic::safetensors
