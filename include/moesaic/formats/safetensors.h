// SPDX-License-Identifier: Apache-2.0
// The safetensors format: an 8-byte header length, a JSON header, the tensors' bytes without gaps.
// Files are untrusted: nothing is allocated or dereferenced before it is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/base/file.h"
#include "moesaic/base/filesystem.h"

namespace moesaic::safetensors {

/// Max length of a header in bytes, when reading and writing, as in the reference implementation.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// The member of a zip archive that is read in its place: TorchScript files that this library
/// writes carry their tensors a second time, in this form.
inline constexpr const char* kArchiveMember = "extra/model.safetensors";

/// One tensor of a file. `dtype` is one of F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;  ///< Sizes of the axes; empty for a scalar.
  uint64_t begin = 0;          ///< Begin in the data section, in bytes.
  uint64_t end = 0;            ///< End in the data section, in bytes, exclusive.
};

/// A memory-mapped file whose header passed every check: length at most 100 MB and inside the file,
/// valid JSON and UTF-8, distinct names, known dtypes, size = shape x dtype, data without gaps or
/// overlaps. Throws Error (failure) in one line with the path otherwise. Of a zip archive,
/// kArchiveMember is read, which must lie there uncompressed.
class File {
 public:
  /// Maps the file and checks its header.
  explicit File(const fs::path& path);

  /// Returns the entries in the order of their bytes in the file.
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// Returns the entry of a name, or nullptr if there is none.
  const Entry* find(std::string_view name) const;
  /// Returns a tensor's bytes, row-major and little-endian; valid while this object lives; not
  /// always aligned for the dtype.
  std::span<const std::byte> bytes(const Entry& entry) const;
  /// Returns the texts of the header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }

 private:
  MappedFile file_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  std::span<const std::byte> data_;
};

/// A tensor to be written.
struct Item {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

/// Returns a tensor's bytes, exactly shape x dtype, which must stay valid until the next call.
using Source = std::function<std::span<const std::byte>(const Item&)>;

/// Writes a file atomically and returns what it holds. Tensors are ordered by size of dtype
/// (largest first), then name, so every tensor is aligned to its dtype and equal content gives
/// equal files. Tensors may be made one at a time: `source` is called once for each, in file order.
/// Throws Error (failure) for a duplicate or reserved name, a wrong size, and text that is not
/// UTF-8. `progress` is HashedFile's.
FileContent write_streamed(const fs::path& path, std::vector<Item> items, const Source& source,
                           const std::map<std::string, std::string>& metadata = {},
                           std::function<void()> progress = {});

/// Returns the size of one element in bytes. Throws Error (failure) for an unknown dtype.
std::size_t dtype_size(std::string_view dtype);

}  // namespace moesaic::safetensors
