// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace moesaic {

/// SHA-256 of a stream of bytes.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(std::span<const std::byte> bytes);
  /// 64 lower-case hex digits of what was fed so far; more may follow.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::span<const std::byte> bytes);

/// Reads the file in pieces; an Error names the path.
std::string sha256_file_hex(const std::filesystem::path& path);

/// MD5, for files of which their makers published nothing better: it finds damage, not forgery.
std::string md5_file_hex(const std::filesystem::path& path);

}  // namespace moesaic
