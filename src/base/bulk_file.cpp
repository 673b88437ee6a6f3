// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/bulk_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace moesaic {
namespace {

constexpr std::size_t kAlignmentOfMemory = 4096;            // Enough for O_DIRECT on any disk.
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;  // Stays in the cache.

bool set_direct(int fd, bool direct) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

std::byte* aligned_memory() {
  void* const memory = std::aligned_alloc(kAlignmentOfMemory, kBufferBytes);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

void BulkFile::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

BulkFile::BulkFile(const std::filesystem::path& final_place, std::function<void()> progress)
    : file_(final_place),
      buffer_(aligned_memory()),
      direct_(set_direct(file_.fd(), true)),
      progress_(std::move(progress)) {}

void BulkFile::write(std::span<const std::byte> bytes) {
  size_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kBufferBytes - used_);
    std::memcpy(buffer_.get() + used_, bytes.data(), n);
    used_ += n;
    bytes = bytes.subspan(n);
    if (used_ == kBufferBytes) flush();
  }
}

void BulkFile::flush() {
  std::span<const std::byte> bytes(buffer_.get(), used_);
  hash_.update(bytes);
  if (direct_ && used_ == kBufferBytes) {
    const ssize_t n = ::write(file_.fd(), bytes.data(), bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  // The end of a file is no whole block, and what the disk refuses is said by a usual write.
  if (direct_ && !bytes.empty()) direct_ = !set_direct(file_.fd(), false);
  file_.write(bytes);
  waiting_ += direct_ ? 0 : static_cast<int64_t>(used_);
  used_ = 0;
  // Where all pages wait for the end of the file, one sync takes long and shows no progress.
  constexpr int64_t kMaxWaiting = int64_t{64} << 20;
  if (waiting_ >= kMaxWaiting) {
    file_.sync();
    waiting_ = 0;
  }
  if (progress_) progress_();
}

FileContent BulkFile::commit() {
  flush();
  file_.commit();
  return {size_, hash_.hex()};
}

}  // namespace moesaic
