// SPDX-License-Identifier: Apache-2.0
#include "moesaic/formats/cifar.h"

#include <array>

#include "moesaic/base/error.h"
#include "moesaic/formats/gzip.h"

namespace moesaic::cifar {

void read(const fs::path& path, int64_t bytes, const Layout& layout, Records& records) {
  constexpr int64_t kPixels = kChannels * kHeight * kWidth;
  const int64_t record = layout.num_label_bytes + kPixels;
  if (bytes % record != 0) {
    fail("{}: {} bytes are not a whole number of records of {}", path.string(), bytes, record);
  }
  UnpackedReader reader(path);
  const std::vector<uint8_t> content = reader.read_up_to(static_cast<uint64_t>(bytes));
  if (static_cast<int64_t>(content.size()) < bytes) {
    fail("{}: {} bytes unpacked, expected {}", path.string(), content.size(), bytes);
  }
  std::array<uint8_t, 1> more{};  // Reading to the end also verifies the checksum.
  if (reader.read(more) > 0) fail("{}: more than {} bytes unpacked", path.string(), bytes);
  records.pixels.reserve(records.pixels.size() + static_cast<size_t>(bytes / record * kPixels));
  for (auto at = content.begin(); at != content.end(); at += record) {
    records.labels.push_back(at[layout.label_offset]);
    records.pixels.insert(records.pixels.end(), at + layout.num_label_bytes, at + record);
  }
}

}  // namespace moesaic::cifar
