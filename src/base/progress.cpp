// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "moesaic/base/terminal.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kPlainSeconds = 10.0;
constexpr double kSampleSeconds = 0.5;
constexpr double kWindowSeconds = 30.0;
constexpr int kMaxBar = 30;
constexpr int kMinBar = 8;

double steady_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e9)));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string number(double value) {
  const int digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return fmt::format("{:.{}f}", value, digits);
}

// Returns the first `columns` characters without splitting a UTF-8 sequence.
std::string_view cut(std::string_view text, int columns) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (starts_character(text[i]) && columns-- <= 0) return text.substr(0, i);
  }
  return text;
}

std::string bar(double fraction, int width, bool color) {
  const int filled = static_cast<int>(fraction * width);
  const std::string body = std::string(filled, '=') + std::string(width - filled, ' ');
  if (!color) return "[" + body + "]";
  return "[\x1b[32m" + body + "\x1b[0m]";
}

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      is_terminal_(is_terminal(options_.out)),
      uses_color_(wants_color(options_.out)),
      done_(options_.start) {
  options_.label = escaped(options_.label);
  if (!options_.clock) options_.clock = steady_seconds;
  begin();
}

void Progress::begin() {
  started_ = options_.clock();
  last_shown_ = is_terminal_ ? started_ - kRedrawSeconds : started_;
  samples_.assign(1, Sample{started_, done_});
}

Progress::~Progress() {
  if (!is_drawn_ || is_finished_) return;
  print(options_.has_summary ? "\n" : "\r\x1b[K");
}

// Ignores errors, since a closed terminal must not stop the work.
void Progress::print(const std::string& text) {
  std::fputs(text.c_str(), options_.out);
  std::fflush(options_.out);
}

void Progress::show(int64_t done, int64_t total) {
  if (options_.total != total) {
    options_.total = total;
    begin();
  }
  advance(done - done_);
}

void Progress::exclude_time(double seconds) {
  started_ += seconds;
  for (Sample& sample : samples_) sample.time += seconds;
}

void Progress::advance(int64_t items, std::string_view note) {
  done_ += items;
  if (!note.empty()) {
    note_ = note;
    for (char& c : note_) {
      if (static_cast<unsigned char>(c) < 0x20) c = ' ';  // A line break would split the line.
    }
  }
  const double now = options_.clock();
  record(now);
  if (now - last_shown_ < (is_terminal_ ? kRedrawSeconds : kPlainSeconds)) return;
  last_shown_ = now;
  is_terminal_ ? draw() : print(plain_line() + "\n");
}

void Progress::finish() {
  if (is_finished_ || !options_.has_summary) return;
  is_finished_ = true;
  const double seconds = options_.clock() - started_;
  const int64_t items = done_ - options_.start;
  const bool one = items == 1 && options_.unit.ends_with('s');
  const std::string unit = one ? options_.unit.substr(0, options_.unit.size() - 1) : options_.unit;
  std::string line = fmt::format("{}: {} {} in {}", options_.label, items, unit, duration(seconds));
  if (seconds > 0) line += fmt::format(", {} {}/s", number(items / seconds), options_.unit);
  if (!note_.empty()) line += ", " + note_;
  print((is_terminal_ ? "\r\x1b[K" : "") + line + "\n");
}

// Records a thinned sample, so that a loop of millions of tiny steps keeps only a few dozen.
void Progress::record(double now) {
  const bool thinned =
      samples_.size() > 1 && now - samples_[samples_.size() - 2].time < kSampleSeconds;
  if (thinned) samples_.pop_back();
  samples_.push_back({now, done_});
  while (samples_.size() > 2 && now - samples_[1].time >= kWindowSeconds) samples_.pop_front();
}

double Progress::rate() const {
  const double seconds = samples_.back().time - samples_.front().time;
  const auto items = static_cast<double>(samples_.back().done - samples_.front().done);
  return seconds > 0 ? items / seconds : 0.0;
}

std::string Progress::status() const {
  std::string text = options_.total > 0
                         ? fmt::format("{}/{} {}", done_, options_.total, options_.unit)
                         : fmt::format("{} {}", done_, options_.unit);
  if (const double speed = rate(); speed > 0) {
    text += fmt::format(", {} {}/s", number(speed), options_.unit);
    const auto left = static_cast<double>(std::max<int64_t>(0, options_.total - done_));
    if (options_.total > 0) text += fmt::format(", {} left", duration(left / speed));
  }
  if (!note_.empty()) text += ", " + note_;
  return text;
}

std::string Progress::plain_line() const {
  if (options_.total <= 0) return fmt::format("{}: {}", options_.label, status());
  const double fraction = static_cast<double>(done_) / static_cast<double>(options_.total);
  return fmt::format("{}: {:.0f}%, {}", options_.label, std::min(100.0, 100 * fraction), status());
}

void Progress::draw() {
  const int columns = terminal_columns(options_.out) - 1;  // The last column would wrap.
  std::string head = options_.label;
  std::string middle;
  const std::string tail = status();
  if (options_.total > 0) {
    const double fraction =
        std::clamp(static_cast<double>(done_) / static_cast<double>(options_.total), 0.0, 1.0);
    head += fmt::format(" {:3.0f}%", 100 * fraction);
    const auto shown = static_cast<int>(count_characters(head) + count_characters(tail));
    const int room = columns - shown - 4;  // Brackets and spaces take 4.
    if (room >= kMinBar) middle = bar(fraction, std::min(room, kMaxBar), uses_color_) + " ";
  }
  std::string line = head + " " + middle + tail;
  // A line with a bar always fits and must not be cut, since its colour codes would count.
  if (middle.empty()) line = cut(line, columns);
  print("\r" + line + "\x1b[K");
  is_drawn_ = true;
}

}  // namespace moesaic
