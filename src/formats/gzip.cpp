// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <climits>

#include "moesaic/base/checked.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"

namespace moesaic {
namespace {

constexpr uint64_t kMostGain = 1032;
constexpr std::size_t kPiece = std::size_t{1} << 20;

bool starts_member(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

}  // namespace

struct UnpackedReader::State {
  explicit State(const std::filesystem::path& path)
      : name(path.string()), file(path), left(file.bytes()), compressed(starts_member(left)) {
    constexpr int kGzipOnly = 16;
    if (compressed && inflateInit2(&stream, kGzipOnly + MAX_WBITS) != Z_OK) {
      fail("{}: cannot unpack: out of memory", name);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (compressed) inflateEnd(&stream);
  }

  std::size_t copy(std::span<uint8_t> out) {
    const std::size_t n = std::min(out.size(), left.size());
    std::transform(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(n), out.begin(),
                   [](std::byte b) { return std::to_integer<uint8_t>(b); });
    left = left.subspan(n);
    return n;
  }

  std::size_t unpack(std::span<uint8_t> out) {
    std::size_t done = 0;
    while (done < out.size() && !finished) done += step(out.subspan(done));
    return done;
  }

  // One call of inflate: takes from `left`, returns how much it put into `out`.
  std::size_t step(std::span<uint8_t> out) {
    const auto given = static_cast<uInt>(std::min<std::size_t>(left.size(), UINT_MAX));
    const auto room = static_cast<uInt>(std::min<std::size_t>(out.size(), UINT_MAX));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(left.data()));
    stream.avail_in = given;
    stream.next_out = out.data();
    stream.avail_out = room;
    const int result = inflate(&stream, Z_NO_FLUSH);
    left = left.subspan(given - stream.avail_in);
    if (result == Z_STREAM_END) {
      end_member();
    } else if (result == Z_BUF_ERROR) {
      fail("{}: truncated: the gzip data stops after {} bytes", name, file.bytes().size());
    } else if (result != Z_OK) {
      fail("{}: corrupted gzip data near byte {}: {}", name, file.bytes().size() - left.size(),
           stream.msg != nullptr ? stream.msg : "cannot unpack");
    }
    return room - stream.avail_out;
  }

  void end_member() {
    if (left.empty()) {
      finished = true;
    } else if (starts_member(left)) {
      inflateReset(&stream);
    } else {
      fail("{}: {} bytes behind the end of the gzip data", name, left.size());
    }
  }

  std::string name;
  MappedFile file;
  std::span<const std::byte> left;
  bool compressed;
  bool finished = false;
  z_stream stream{};
};

UnpackedReader::UnpackedReader(const std::filesystem::path& path)
    : state_(std::make_unique<State>(path)) {}
UnpackedReader::UnpackedReader(UnpackedReader&&) noexcept = default;
UnpackedReader& UnpackedReader::operator=(UnpackedReader&&) noexcept = default;
UnpackedReader::~UnpackedReader() = default;

std::size_t UnpackedReader::read(std::span<uint8_t> out) {
  return state_->compressed ? state_->unpack(out) : state_->copy(out);
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

bool UnpackedReader::compressed() const noexcept {
  return state_->compressed;
}

uint64_t UnpackedReader::file_size() const noexcept {
  return state_->file.bytes().size();
}

uint64_t UnpackedReader::max_unpacked() const noexcept {
  if (!compressed()) return file_size();
  return checked_mul(file_size(), kMostGain).value_or(UINT64_MAX);
}

std::vector<uint8_t> read_maybe_gzip(const std::filesystem::path& path, std::size_t max_bytes) {
  UnpackedReader reader(path);
  std::vector<uint8_t> bytes = reader.read_up_to(max_bytes);
  uint8_t more = 0;
  if (reader.read({&more, 1}) != 0) {
    fail("{}: more than the {} bytes that are accepted here", path.string(), max_bytes);
  }
  return bytes;
}

}  // namespace moesaic
