// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "moesaic/base/checked_math.h"
#include "moesaic/base/error.h"
#include "moesaic/base/posix.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxGain = 1032;
constexpr std::size_t kPiece = std::size_t{1} << 20;
/// Size of zlib's input buffer, a prime number. zlib's output buffer is twice as large, and a
/// missing checksum goes unnoticed if the unpacked size is a multiple of that.
constexpr unsigned kBuffer = 262147;

}  // namespace

UnpackedReader::UnpackedReader(const fs::path& path)
    : name_(path.string()), file_(gzopen(name_.c_str(), "rbe"), &gzclose_r) {
  std::error_code error;
  size_ = fs::file_size(path, error);
  if (!file_ || error) fail_errno(path, "cannot open", error ? error.value() : errno);
  gzbuffer(file_.get(), kBuffer);
  is_compressed_ = gzdirect(file_.get()) == 0;
}

// Reads in pieces smaller than zlib's output buffer, so that zlib never unpacks directly into
// `out`: if the last byte filled it, a missing checksum would go unnoticed.
std::size_t UnpackedReader::read(std::span<uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto wanted = static_cast<unsigned>(std::min<std::size_t>(out.size() - done, kBuffer));
    const int got = gzread(file_.get(), out.data() + done, wanted);
    check();
    done += static_cast<std::size_t>(got);
    if (static_cast<unsigned>(got) < wanted) break;
  }
  return done;
}

void UnpackedReader::check() const {
  int code = Z_OK;
  std::string_view text = gzerror(file_.get(), &code);
  if (code == Z_OK || code == Z_STREAM_END) return;
  if (code == Z_ERRNO) fail_errno(name_, "cannot read");
  if (code == Z_BUF_ERROR) fail("{}: truncated: the gzip data stops after {} bytes", name_, size_);
  if (text.starts_with(name_ + ": ")) text.remove_prefix(name_.size() + 2);
  fail("{}: {}{}", name_, code == Z_DATA_ERROR ? "corrupted gzip data: " : "", text);
}

std::vector<uint8_t> UnpackedReader::read_up_to(uint64_t limit) {
  std::vector<uint8_t> bytes;
  std::size_t got = 0;
  while (got < limit) {
    const std::size_t piece = std::min<uint64_t>(limit - got, std::max(kPiece, got));
    bytes.resize(got + piece);
    const std::size_t n = read(std::span(bytes).subspan(got));
    got += n;
    if (n < piece) break;
  }
  bytes.resize(got);
  return bytes;
}

uint64_t UnpackedReader::max_unpacked_size() const noexcept {
  if (!is_compressed()) return file_size();
  return checked_mul(file_size(), kMaxGain).value_or(UINT64_MAX);
}

}  // namespace moesaic
