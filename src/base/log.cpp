// SPDX-License-Identifier: Apache-2.0
#include "moesaic/base/log.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "moesaic/base/suggestions.h"
#include "moesaic/base/terminal.h"
#include "moesaic/base/text.h"

namespace moesaic {
namespace {

const std::array<std::string, 4> kNames = {"debug", "info", "warning", "error"};

LogLevel threshold_from_environment() {
  const char* wanted = std::getenv("MOESAIC_LOG");
  if (wanted == nullptr || *wanted == '\0') return LogLevel::info;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == wanted) return static_cast<LogLevel>(i);
  }
  log_line(LogLevel::warning, fmt::format("MOESAIC_LOG={} is not a log level; {}", wanted,
                                          did_you_mean(wanted, kNames)));
  return LogLevel::info;
}

/// What is particular to the log of one process of several.
struct LogState {
  std::mutex mutex;
  std::string prefix;
  std::function<void(std::string_view)> take_warning;
};

LogState& log_state() {
  static LogState object;
  return object;
}

std::string level_prefix(LogLevel level, bool color) {
  if (level == LogLevel::info) return "";
  const std::string& name = kNames[static_cast<std::size_t>(level)];
  if (!color) return name + ": ";
  const char* code = level == LogLevel::error ? "31" : level == LogLevel::warning ? "33" : "2";
  return fmt::format("\x1b[{}m{}:\x1b[0m ", code, name);
}

}  // namespace

LogLevel log_threshold() {
  static const LogLevel threshold = threshold_from_environment();
  return threshold;
}

void log_once(LogLevel level, const std::string& message, const std::string& topic) {
  static std::mutex mutex;
  static std::set<std::string> said;
  {
    const std::lock_guard lock(mutex);
    if (!said.insert(topic.empty() ? message : topic).second) return;
  }
  log_at(level, "{}", message);
}

void set_log_prefix(std::string prefix) {
  const std::lock_guard lock(log_state().mutex);
  log_state().prefix = std::move(prefix);
}

void set_warning_handler(std::function<void(std::string_view)> handler) {
  const std::lock_guard lock(log_state().mutex);
  log_state().take_warning = std::move(handler);
}

void log_line(LogLevel level, std::string_view message) {
  std::function<void(std::string_view)> take;
  if (level == LogLevel::warning) {
    const std::lock_guard lock(log_state().mutex);
    take = log_state().take_warning;
  }
  take ? take(message) : write_log_line(level, message);
}

void write_log_line(LogLevel level, std::string_view message) {
  // Clears a progress line on the terminal, which is redrawn below the message.
  std::string line = is_terminal(stderr) ? "\r\x1b[K" : "";
  line += level_prefix(level, wants_color(stderr));
  if (level != LogLevel::error) {
    const std::lock_guard lock(log_state().mutex);
    line += log_state().prefix;
  }
  line += escaped(message);
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace moesaic
