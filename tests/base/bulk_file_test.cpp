// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "support.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class BulkFileTest : public ::testing::Test {
 protected:
  const test::TempDir folder_;
};

std::string bytes_of_size(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 2654435761U) >> 11);
  return bytes;
}

TEST_F(BulkFileTest, HoldsWhatWasWrittenAndSaysItsHash) {
  constexpr size_t kBuffer = size_t{1} << 20;
  for (const size_t size : {size_t{0}, size_t{1}, kBuffer - 1, kBuffer, kBuffer + 1, 4 * kBuffer,
                            7 * kBuffer + 12345}) {
    const std::string bytes = bytes_of_size(size);
    HashedFile file(folder_ / "file");
    // In pieces that do not fit its buffer.
    for (size_t i = 0; i < size; i += 2999999) {
      file.write(std::as_bytes(std::span(bytes).subspan(i, std::min<size_t>(2999999, size - i))));
    }
    EXPECT_FALSE(fs::exists(folder_ / "file"));
    const FileContent content = file.commit();
    EXPECT_EQ(content.size, static_cast<int64_t>(size));
    EXPECT_EQ(content.sha256, sha256_hex(std::as_bytes(std::span(bytes))));
    EXPECT_EQ(content.sha256, sha256_file_hex(folder_ / "file"));
    EXPECT_EQ(fs::file_size(folder_ / "file"), size);
    fs::remove(folder_ / "file");
  }
}

/// Returns the fraction of a file's pages that the page cache holds.
double cached_fraction(const fs::path& path) {
  const MappedFile file(path);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(file.bytes().size() / page);
  void* const begin = const_cast<std::byte*>(file.bytes().data());
  EXPECT_EQ(::mincore(begin, pages.size() * page, pages.data()), 0);
  const auto cached =
      std::count_if(pages.begin(), pages.end(), [](int resident) { return resident & 1; });
  return static_cast<double>(cached) / static_cast<double>(pages.size());
}

TEST_F(BulkFileTest, GoesAroundThePageCache) {
  const fs::path probe = folder_ / "probe";
  const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_DIRECT, 0600);
  if (fd < 0) GTEST_SKIP() << "this file system has no O_DIRECT";
  alignas(4096) static const std::array<char, 1 << 20> block = {};
  const ssize_t written = ::write(fd, block.data(), block.size());
  ::close(fd);
  if (written < 0 || cached_fraction(probe) > 0.5) {
    GTEST_SKIP() << "this file system keeps what is written with O_DIRECT";
  }
  const std::string bytes = bytes_of_size(size_t{16} << 20);
  HashedFile direct(folder_ / "direct");
  direct.write(std::as_bytes(std::span(bytes)));
  direct.commit();
  EXPECT_LT(cached_fraction(folder_ / "direct"), 0.1);
  write_atomic(folder_ / "usual", bytes);
  EXPECT_GT(cached_fraction(folder_ / "usual"), 0.9);
}

TEST_F(BulkFileTest, LeavesNothingWithoutCommit) {
  const std::string bytes = bytes_of_size(size_t{5} << 20);
  {
    HashedFile file(folder_ / "file");
    file.write(std::as_bytes(std::span(bytes)));
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(BulkFileTest, SaysWhichFileDoesNotFitTheDisk) {
  const std::string bytes = bytes_of_size(size_t{12} << 20);
  // The limit is at the end of a piece, within one, and within one but not after a whole block.
  for (const rlim_t beyond : {0, 4096, 1000}) {
    const test::FileSizeLimit limit((rlim_t{5} << 20) + beyond);
    EXPECT_THAT(test::failure_of([&] {
                  HashedFile file(folder_ / "file");
                  file.write(std::as_bytes(std::span(bytes)));
                  file.commit();
                }),
                ::testing::AllOf(::testing::HasSubstr("file: cannot write"),
                                 ::testing::HasSubstr("File too large")));
    EXPECT_TRUE(fs::is_empty(folder_.path()));
  }
}

}  // namespace
}  // namespace moesaic
