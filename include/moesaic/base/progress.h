// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace moesaic {

/// How Progress shows a loop.
struct ProgressOptions {
  std::string label;
  int64_t total = 0;  ///< Number of items; 0 if unknown: no fraction or remaining time is shown.
  std::string unit = "images";
  std::FILE* out = stderr;
  int64_t start = 0;  ///< Items done before, e.g. before a resume.
  bool has_summary =
      true;  ///< False: nothing is left of it at its end, for work inside other work.
  std::function<double()> clock = {};  ///< Time in seconds; default: steady clock.
};

/// Shows the progress of a loop. On a terminal: one line with bar, fraction, rate, remaining time
/// and note, redrawn at most 10 times a second and cut to the terminal's width. Otherwise (a log
/// file): a plain line about every 10 seconds. Either form ends with a summary line, unless the
/// options have none. Not thread-safe.
class Progress {
 public:
  /// Takes the options; the clock starts here, unless show() starts it again.
  explicit Progress(ProgressOptions options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Ends the line if finish() was not called, e.g. because of an exception.
  ~Progress();

  /// Adds `items` items. `note`, e.g. "loss 0.41", replaces the last one unless it is empty.
  void advance(int64_t items, std::string_view note = {});
  /// Sets the items done and the total, for loops that count themselves. The first call starts the
  /// clock, so that earlier work such as opening files does not count towards the rate.
  void show(int64_t done, int64_t total);
  /// Keeps time that other work took out of rate and remaining time.
  void exclude_time(double seconds);
  /// Writes the summary line, once.
  void finish();

 private:
  struct Sample {
    double time;
    int64_t done;
  };

  void begin();
  void record(double now);
  double rate() const;
  std::string plain_line() const;
  std::string status() const;
  void draw();
  void print(const std::string& text);

  ProgressOptions options_;
  bool is_terminal_;
  bool uses_color_;
  double started_;
  double last_shown_;
  int64_t done_;
  bool is_finished_ = false;
  bool is_drawn_ = false;
  std::string note_;
  std::deque<Sample> samples_;  ///< Recent samples, for the moving average of the rate.
};

}  // namespace moesaic
