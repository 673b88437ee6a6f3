// SPDX-License-Identifier: Apache-2.0
// Event files for TensorBoard: TFRecord framing (length, masked CRC-32C) around protobuf events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "moesaic/base/filesystem.h"
#include "moesaic/base/posix.h"
#include "moesaic/formats/image.h"

namespace moesaic {

/// Returns the time in seconds since 1970 (UTC).
double seconds_since_1970();

/// Writes scalars, histograms and images to a new file `events.out.tfevents.SECONDS.HOST.PROCESS`
/// in `folder`, which is created if missing. Another writer, e.g. after a resume, adds its own
/// file; TensorBoard merges them. Only complete records are handed to the system, in order.
class EventWriter {
 public:
  /// Creates the file. Throws Error (failure) with the path.
  explicit EventWriter(const fs::path& folder);
  /// Flushes; a failure is logged, since a destructor must not throw.
  ~EventWriter();

  /// Adds a scalar. `value` is stored as float32.
  void add_scalar(std::string_view tag, double value, int64_t step,
                  double wall_time = seconds_since_1970());
  /// Adds a histogram whose bucket i, from i to i + 1, holds values[i], such as those of experts.
  void add_histogram(std::string_view tag, std::span<const double> values, int64_t step);
  /// Adds an image, as a PNG. No tag may have data of another kind. Throws as encode_png().
  void add_image(std::string_view tag, const PixelView& image, int64_t step);
  /// Writes all buffered records to the file. Throws Error (failure) if the disk is full.
  void flush();

  /// Returns the path of the file.
  const fs::path& path() const noexcept { return path_; }

 private:
  void append_record(std::string_view event);
  /// Adds an event of one value: the fields of a Summary.Value behind its tag.
  void append_value(std::string_view tag, std::string_view fields, int64_t step,
                    double wall_time = seconds_since_1970());

  fs::path path_;
  UniqueFd fd_;
  std::string buffer_;
  uint64_t written_ = 0;  ///< File size in bytes up to the last complete record.
};

}  // namespace moesaic
