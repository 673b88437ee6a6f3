// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "moesaic/base/file.h"
#include "moesaic/base/hash.h"

namespace moesaic {

/// What a file holds.
struct FileContent {
  int64_t size = 0;    ///< In bytes.
  std::string sha256;  ///< In 64 lower-case hex digits.
};

/// An AtomicFile for much data. It is hashed while it is written, and goes around the page cache
/// where the file system allows that (O_DIRECT): a checkpoint does not evict the data set that is
/// trained on, and the memory traffic of a second copy does not slow down who computes.
class BulkFile {
 public:
  /// `progress` is called as often as a piece of a few MiB at most is on its way to the disk.
  explicit BulkFile(const std::filesystem::path& final_place, std::function<void()> progress = {});

  void write(std::span<const std::byte> bytes);
  /// Puts the file in place, as AtomicFile::commit() does, and returns what it holds.
  FileContent commit();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  void flush();

  AtomicFile file_;
  std::unique_ptr<std::byte[], Free> buffer_;
  std::size_t used_ = 0;
  bool direct_ = false;
  Sha256 hash_;
  int64_t size_ = 0, waiting_ = 0;  ///< Bytes in all, and in the page cache.
  std::function<void()> progress_;
};

}  // namespace moesaic
