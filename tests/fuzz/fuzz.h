// SPDX-License-Identifier: Apache-2.0
// What targets of libFuzzer share. Each reads its input as a file of a stranger: an Error in one
// line is a right answer; a crash, a second, and memory beyond four times the input and 64 MiB are
// not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace moesaic::fuzz {

using Bytes = std::span<const uint8_t>;

/// Reads one input. Each target defines it.
void read_input(Bytes input);

/// A regular file that lies in memory, as long as the object lives.
class MemoryFile {
 public:
  explicit MemoryFile(Bytes content);
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// Writes a file of that name into this process's folder and returns its path: for readers to which
/// names matter, or that read several files.
std::filesystem::path put_file(const std::string& name, Bytes content);

/// Returns the input as text.
inline std::string text_of(Bytes input) {
  return {input.begin(), input.end()};
}

/// Returns the input in two parts: the second begins after the first blank line.
std::pair<std::string, std::string> halves(Bytes input);

}  // namespace moesaic::fuzz
