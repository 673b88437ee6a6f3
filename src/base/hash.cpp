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
  if (!context) fail("hash: out of memory");
  return context;
}

void require(int success) {
  if (success != 1) fail("hash: OpenSSL refused");
}

std::string finish(const Context& context) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  require(EVP_DigestFinal_ex(context.get(), digest.data(), &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

/// Calls `piece(bytes)` for consecutive pieces of the whole file.
template <class F>
void for_pieces(const std::filesystem::path& path, F&& piece) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::vector<std::byte> bytes(std::size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path, "cannot read");
    if (n == 0) return;
    piece(std::span<const std::byte>(bytes).first(static_cast<std::size_t>(n)));
  }
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
  const Context copy = new_context();  // Finishing a copy keeps this one open.
  require(EVP_MD_CTX_copy_ex(copy.get(), state_->context.get()));
  return finish(copy);
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_file_hex(const std::filesystem::path& path) {
  Sha256 hash;
  for_pieces(path, [&](std::span<const std::byte> piece) { hash.update(piece); });
  return hash.hex();
}

std::string md5_file_hex(const std::filesystem::path& path) {
  const Context context = new_context();
  require(EVP_DigestInit_ex(context.get(), EVP_md5(), nullptr));
  for_pieces(path, [&](std::span<const std::byte> piece) {
    require(EVP_DigestUpdate(context.get(), piece.data(), piece.size()));
  });
  return finish(context);
}

}  // namespace moesaic
