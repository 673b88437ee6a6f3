// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/recorder.h"
#include "moesaic/base/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <span>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/log.h"

namespace moesaic {
namespace {

double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

/// Opens a file of the folder that is not followed where it is a link.
UniqueFd open_own(const std::filesystem::path& path) {
  std::error_code error;
  create_folders(path.parent_path(), error);
  if (error) fail("{}: cannot create its folder: {}", path.string(), error.message());
  return open_file(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW);
}

/// Cuts the file after `keep` lines; returns how many there are then. A line that a killed process
/// left unfinished counts as none.
int64_t cut_lines(const UniqueFd& fd, const std::filesystem::path& path, int64_t keep) {
  constexpr uint64_t kAnySize = std::numeric_limits<uint64_t>::max();  // But of a regular file.
  const std::string text = read_text(path, kAnySize, "a file of metrics");
  size_t end = 0;
  int64_t lines = 0;
  while (lines < keep) {
    const size_t newline = text.find('\n', end);
    if (newline == std::string::npos) break;
    end = newline + 1;
    ++lines;
  }
  if (end < text.size() && ::ftruncate(fd.get(), static_cast<off_t>(end)) != 0) {
    fail_errno(path, "cannot cut");
  }
  return lines;
}

}  // namespace

Recorder::Recorder(const std::filesystem::path& folder, int64_t keep_lines)
    : path_(folder / "metrics.jsonl"),
      fd_(open_own(path_)),
      lines_(cut_lines(fd_, path_, keep_lines)),
      events_(folder) {
  if (lines_ < keep_lines) {
    log_warning("{}: of {} that were written, {} are left", path_.string(),
                count_text(keep_lines, "line"), lines_);
  }
  sync_path(folder);  // It names the two files.
}

void Recorder::write(const std::string& kind, int64_t step, const nlohmann::ordered_json& fields,
                     const std::string& tag) {
  nlohmann::ordered_json line = {{"kind", kind}, {"step", step}};
  line.update(fields);
  const std::string text = line.dump() + "\n";
  write_all(fd_.get(), std::as_bytes(std::span(text)), path_);
  ++lines_;
  for (const auto& [key, value] : fields.items()) {
    if (value.is_number()) scalar(tag + "/" + key, value.get<double>(), step);
  }
}

void Recorder::scalar(const std::string& tag, double value, int64_t step) {
  events_.scalar(tag, value, step, wall_time());
}

void Recorder::sync() {
  sync_fd(fd_.get(), path_);
  events_.flush();
}

double Throughput::take() {
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
  const double rate = static_cast<double>(images_) / time.count();
  restart();
  return rate;
}

void Throughput::restart() {
  begin_ = std::chrono::steady_clock::now();
  images_ = 0;
}

double rounded(double value) {
  return std::stod(fmt::format("{:.7g}", value));
}

}  // namespace moesaic
