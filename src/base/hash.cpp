// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/hash.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "moesaic/base/error.h"
#include "moesaic/base/posix.h"

namespace moesaic {
namespace {

using Context = std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)>;

void require(int success) {
  if (success != 1) fail("hash: a call of OpenSSL failed");
}

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kCastagnoli = 0x82f63b78;  // Bit-reversed polynomial.
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

Context new_context(const EVP_MD* kind) {
  Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (!context) fail("hash: out of memory");
  require(EVP_DigestInit_ex(context.get(), kind, nullptr));
  return context;
}

std::string finish(const Context& context) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context.get(), digest.data(), &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string file_hex(const fs::path& path, const EVP_MD* kind) {
  const Context context = new_context(kind);
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::vector<std::byte> bytes(std::size_t{1} << 20);
  for (;;) {
    const ssize_t n = TEMP_FAILURE_RETRY(::read(fd.get(), bytes.data(), bytes.size()));
    if (n < 0) fail_errno(path, "cannot read");
    if (n == 0) return finish(context);
    require(EVP_DigestUpdate(context.get(), bytes.data(), static_cast<std::size_t>(n)));
  }
}

}  // namespace

Sha256::Sha256() : context_(new_context(EVP_sha256())) {}

void Sha256::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hex() const {
  const Context copy = new_context(EVP_sha256());  // Finishing a copy keeps this one open.
  require(EVP_MD_CTX_copy_ex(copy.get(), context_.get()));
  return finish(copy);
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_file_hex(const fs::path& path) {
  return file_hex(path, EVP_sha256());
}

std::string md5_file_hex(const fs::path& path) {
  return file_hex(path, EVP_md5());
}

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffff;
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ std::to_integer<uint32_t>(b)) & 0xff];
  }
  return crc ^ 0xffffffff;
}

}  // namespace moesaic
