// SPDX-License-Identifier: Apache-2.0
// Reading of files that may or may not be compressed with gzip; the content decides, not the name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct gzFile_s;  // of zlib

namespace moesaic {

/// A stream of a file's bytes, unpacked if it is gzip (also several members in a row).
/// Corrupted or truncated gzip throws Error(failure) with the path; what is no gzip behind its end
/// is passed over, as `gzip -d` does.
class UnpackedReader {
 public:
  explicit UnpackedReader(const std::filesystem::path& path);

  /// Fills `out`; returns fewer bytes only at the end. The call that does so has verified the
  /// checksum.
  std::size_t read(std::span<uint8_t> out);
  /// The next `limit` bytes, fewer only at the end. Memory grows with what is really there.
  std::vector<uint8_t> read_up_to(uint64_t limit);

  bool compressed() const noexcept { return compressed_; }
  /// Size of the file as it lies on the disk.
  uint64_t file_size() const noexcept { return size_; }
  /// An upper bound on the unpacked size: deflate never gains more than a factor of 1032.
  uint64_t max_unpacked() const noexcept;

 private:
  void check() const;

  std::string name_;
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
  uint64_t size_ = 0;
  bool compressed_ = false;
};

/// The whole content, unpacked if need be; Error(failure) if it is more than `max_bytes`. Memory
/// grows with what is really there.
std::vector<uint8_t> read_maybe_gzip(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace moesaic
