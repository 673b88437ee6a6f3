// SPDX-License-Identifier: Apache-2.0
// Reading of files that may or may not be compressed with gzip; the content decides, not the name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace moesaic {

/// A stream of a file's bytes, unpacked if it is gzip (also several members in a row).
/// Corrupted or truncated gzip and bytes behind its end throw Error(failure) with the path.
class UnpackedReader {
 public:
  explicit UnpackedReader(const std::filesystem::path& path);
  UnpackedReader(UnpackedReader&&) noexcept;
  UnpackedReader& operator=(UnpackedReader&&) noexcept;
  ~UnpackedReader();

  /// Fills `out`; returns fewer bytes only at the end. The call that does so has verified the
  /// checksum.
  std::size_t read(std::span<uint8_t> out);
  /// The next `limit` bytes, fewer only at the end. Memory grows with what is really there.
  std::vector<uint8_t> read_up_to(uint64_t limit);

  bool compressed() const noexcept;
  /// Size of the file as it lies on the disk.
  uint64_t file_size() const noexcept;
  /// An upper bound on the unpacked size: deflate never gains more than a factor of 1032.
  uint64_t max_unpacked() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The whole content, unpacked if need be; Error(failure) if it is more than `max_bytes`. Memory
/// grows with what is really there.
std::vector<uint8_t> read_maybe_gzip(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace moesaic
