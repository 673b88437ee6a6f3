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

struct ContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, ContextDeleter>;

Context new_context() {
  Context context(EVP_MD_CTX_new());
  if (!context) fail("SHA-256: out of memory");
  return context;
}

void require(int success) {
  if (success != 1) fail("SHA-256: OpenSSL refused");
}

}  // namespace

struct Sha256::State {
  Context context = new_context();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  require(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr));
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  require(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hex() const {
  const Context copy = new_context();  // finishing a copy leaves this one open for more
  require(EVP_MD_CTX_copy_ex(copy.get(), state_->context.get()));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  require(EVP_DigestFinal_ex(copy.get(), digest.data(), &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_file_hex(const std::filesystem::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  Sha256 hash;
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(fd.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path, "cannot read");
    if (n == 0) return hash.hex();
    hash.update(std::span(piece).first(static_cast<std::size_t>(n)));
  }
}

}  // namespace moesaic
