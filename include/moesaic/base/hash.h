// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "moesaic/base/filesystem.h"

struct evp_md_ctx_st;  // A type of OpenSSL.

namespace moesaic {

/// Incremental SHA-256 of a byte stream.
class Sha256 {
 public:
  /// Starts with no bytes.
  Sha256();

  /// Adds bytes to the stream.
  void update(std::span<const std::byte> bytes);
  /// Returns the digest of all bytes so far as 64 lower-case hex digits; update() may follow.
  std::string hex() const;

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// Returns the SHA-256 of `bytes` as 64 lower-case hex digits.
std::string sha256_hex(std::span<const std::byte> bytes);

/// Returns the SHA-256 of a file, read in pieces. Throws Error (failure) with the path.
std::string sha256_file_hex(const fs::path& path);

/// Returns the MD5 of a file whose publisher offers no better hash: it detects damage, not forgery.
std::string md5_file_hex(const fs::path& path);

/// Returns the CRC-32C (Castagnoli) of the bytes, as in iSCSI.
uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace moesaic
