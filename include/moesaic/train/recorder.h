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

/// Writes what happens in a run to metrics.jsonl, one JSON object a line, and to TensorBoard. The
/// lines hold only what a repeated run repeats to the bit; times go to TensorBoard alone.
class Recorder {
 public:
  /// Opens `folder`/metrics.jsonl and cuts what follows its first `keep_lines` lines: after a
  /// resume that part is written anew.
  Recorder(const std::filesystem::path& folder, int64_t keep_lines);

  /// One line {"kind", "step", ...fields}; numbers among the fields also become the scalars
  /// "<kind>/<field>".
  void write(const std::string& kind, int64_t step, const nlohmann::ordered_json& fields);
  /// To TensorBoard alone.
  void scalar(const std::string& tag, double value, int64_t step);
  /// Puts everything on disk, so that a checkpoint can count on it.
  void sync();

  /// Lines in the file.
  int64_t lines() const { return lines_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  int64_t lines_ = 0;
  EventWriter events_;
};

/// Images a second between two lines of metrics.
class Throughput {
 public:
  void add(int64_t images) { images_ += images; }
  /// The rate since the last take() or restart(), then begins anew.
  double take();
  void restart();

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t images_ = 0;
};

/// `value` with seven significant digits, which float32 deserves and people can read.
double rounded(double value);

}  // namespace moesaic
