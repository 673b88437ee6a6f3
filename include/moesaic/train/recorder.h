// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/base/posix.h"
#include "moesaic/formats/tensorboard.h"

namespace moesaic {

/// Writes the metrics of a run to metrics.jsonl, one JSON object per line, and to TensorBoard. The
/// lines hold only values that a repeated run reproduces; times go to TensorBoard alone.
class Recorder {
 public:
  /// Opens `folder`/metrics.jsonl, never a link, and truncates it to its first `keep_lines` lines:
  /// a resumed run writes the rest again.
  Recorder(const std::filesystem::path& folder, int64_t keep_lines);

  /// Writes a line {"kind", "step", ...fields}; numeric fields also become the TensorBoard scalars
  /// "<tag>/<field>". Lines that are not of one curve need different tags.
  void write(const std::string& kind, int64_t step, const nlohmann::ordered_json& fields,
             const std::string& tag);
  /// Writes a scalar to TensorBoard only.
  void scalar(const std::string& tag, double value, int64_t step);
  /// Flushes everything to disk, so that a checkpoint can rely on it.
  void sync();

  /// Returns the number of lines in the file.
  int64_t lines() const { return lines_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  int64_t lines_ = 0;
  EventWriter events_;
};

/// Images per second between two lines of metrics.
class Throughput {
 public:
  void add(int64_t images) { images_ += images; }
  /// Returns the rate since the last take() or restart(), then starts again.
  double take();
  void restart();

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t images_ = 0;
};

/// Rounds `value` to seven significant digits, the precision of float32.
double rounded(double value);

}  // namespace moesaic
