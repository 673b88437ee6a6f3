// SPDX-License-Identifier: Apache-2.0
// Log messages for users, one line each, on standard error. MOESAIC_LOG=debug|info|warning|error
// sets the minimum level shown (info by default).
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace moesaic {

enum class LogLevel { debug, info, warning, error };

/// Returns the minimum level that is shown; MOESAIC_LOG is read on first use.
LogLevel log_threshold();

/// Writes one whole line in a single call, so that lines of different threads do not interleave.
/// What it says of files may hold anything: it is escaped().
void write_log_line(LogLevel level, std::string_view message);
/// Writes a line, or hands a warning to the function of set_warning_handler().
void log_line(LogLevel level, std::string_view message);

/// Writes a line once in a process, however often it is said; with a topic, the first line of that.
void log_once(LogLevel level, const std::string& message, const std::string& topic = {});

/// Puts `prefix` before every line but errors, e.g. "process 3: " for one of several processes.
void set_log_prefix(std::string prefix);
/// Has warnings handed to `handler`, on the thread that warns, in place of writing them; an empty
/// function ends that.
void set_warning_handler(std::function<void(std::string_view)> handler);

/// Formats a line and writes it with log_line(), if `level` is shown.
template <class... A>
void log_at(LogLevel level, fmt::format_string<A...> format, A&&... arguments) {
  if (level >= log_threshold()) log_line(level, fmt::format(format, std::forward<A>(arguments)...));
}

/// log_at() of one level: log_warning("{}: no such file", path).
template <LogLevel level>
struct LogAt {
  /// Formats a line and writes it, if the level is shown.
  template <class... A>
  void operator()(fmt::format_string<A...> format, A&&... arguments) const {
    log_at<A...>(level, format, std::forward<A>(arguments)...);
  }
};
inline constexpr LogAt<LogLevel::debug> log_debug;
inline constexpr LogAt<LogLevel::info> log_info;
inline constexpr LogAt<LogLevel::warning> log_warning;
inline constexpr LogAt<LogLevel::error> log_error;

}  // namespace moesaic
