// SPDX-License-Identifier: Apache-2.0
// Reads files that may or may not be gzip-compressed; the content decides, not the name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moesaic/base/filesystem.h"

struct gzFile_s;  // A type of zlib.

namespace moesaic {

/// Stream of a file's bytes, decompressed if it is gzip (also with several members). Throws Error
/// (failure) with the path if the gzip data are corrupt or truncated; trailing bytes that are not
/// gzip are ignored, as by `gzip -d`.
class UnpackedReader {
 public:
  /// Opens a file. Throws Error (failure) with the path.
  explicit UnpackedReader(const fs::path& path);

  /// Fills `out` and returns the number of bytes, less than its size only at the end of the file.
  /// The call that reaches the end has verified the checksum.
  std::size_t read(std::span<uint8_t> out);
  /// Returns the next `limit` bytes, fewer only at the end. Memory grows with the bytes present.
  std::vector<uint8_t> read_up_to(uint64_t limit);

  /// Returns whether the file is gzip.
  bool is_compressed() const noexcept { return is_compressed_; }
  /// Returns the size of the file on disk, in bytes.
  uint64_t file_size() const noexcept { return size_; }
  /// Returns an upper bound on the unpacked size: deflate expands by a factor of at most 1032.
  uint64_t max_unpacked_size() const noexcept;

 private:
  void check() const;

  std::string name_;
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
  uint64_t size_ = 0;
  bool is_compressed_ = false;
};

}  // namespace moesaic
