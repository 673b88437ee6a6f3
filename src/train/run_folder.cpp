// SPDX-License-Identifier: Apache-2.0
#include "moesaic/train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <system_error>

#include "moesaic/base/log.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/train/expert_loads.h"

namespace moesaic {
namespace {

bool is_staged(const std::string& name) {
  return name.starts_with('.') && name.ends_with(kStagingSuffix);
}

/// The first checkpoint may have been cut short.
bool holds_only_staged(const fs::path& folder) {
  return std::all_of(fs::directory_iterator(folder), fs::directory_iterator(),
                     [](const auto& entry) { return is_staged(entry.path().filename().string()); });
}

bool is_of_events(const std::string& name) {
  return name.starts_with("events.out.tfevents.");
}

/// A file of a run that has no checkpoint yet.
bool is_of_a_start(const fs::path& entry) {
  const std::string name = entry.filename().string();
  if (name == "checkpoints") return fs::is_directory(entry) && holds_only_staged(entry);
  return name == ".lock" || name == "config.json" || name == "data.json" || is_staged(name) ||
         name == "trace.json" || name.starts_with("metrics.jsonl") || is_of_events(name);
}

bool has_key(const fs::path& path, const char* key, uint64_t max_bytes) {
  const auto json = find_json(read_text(path, max_bytes, "a record of a run"), max_bytes);
  return json && json->contains(key);
}

/// Something other than what a run leaves that failed before its first checkpoint: it can begin
/// again. Its lock tells it from a folder of someone else's with a config.json, which is written
/// after data.json and before everything else.
bool holds_something(const fs::path& root) {
  if (!path_exists(root)) return false;
  if (!fs::is_directory(root)) return true;
  bool data = false, later = false;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (!is_of_a_start(entry.path())) return true;
    const std::string name = entry.path().filename().string();
    data = data || name == "data.json";
    later = later || name == "config.json" || name == "metrics.jsonl" || is_of_events(name);
  }
  if (!data && !later) return false;
  if (!fs::exists(root / ".lock")) return true;
  if (later) {
    return !fs::exists(root / "config.json") ||
           !has_key(root / "config.json", "phases", kMaxDocumentBytes);
  }
  return !has_key(root / "data.json", "splits", kMaxListBytes);
}

/// Sets aside what a run left that begins anew, since its checkpoints of steps are gone: metrics of
/// many steps, its best checkpoint, and those of phases.
void keep_results(const fs::path& root) {
  for (const fs::path& folder : {root, root / "checkpoints"}) {
    for (const fs::path& path : saved_checkpoints(folder)) {
      if (is_set_aside(path, "old")) continue;
      const fs::path kept = set_aside(path, "old");
      log_warning("{}: the run's other checkpoints are gone; this one is kept as {}", path.string(),
                  kept.filename().string());
    }
  }
  std::error_code error;
  if (const auto bytes = fs::file_size(root / "metrics.jsonl", error); !error && bytes > 0) {
    const fs::path kept = set_aside(root / "metrics.jsonl", "old");
    log_warning("{}: its run left no checkpoint; the file is kept as {}",
                (root / "metrics.jsonl").string(), kept.filename().string());
  }
}

/// Reads a record of a run; `suggestion` ends the line where it is not one.
auto read_record(auto&& read, const std::string& suggestion) try {
  return read();
} catch (const IoError&) {
  throw;  // The file may be whole.
} catch (const Error& error) {
  fail("{}; {}", error.what(), suggestion);
}

void remove_start(const fs::path& root) {
  for (const char* name : {"config.json", "data.json"}) fs::remove(root / name);
  std::vector<fs::path> events;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (is_of_events(entry.path().filename().string())) events.push_back(entry.path());
  }
  if (events.empty()) return;
  // Under any name that has "tfevents" in it, TensorBoard would draw them into the new curves.
  for (const fs::path& path : events) fs::remove(path);
  log_info("{}: removed {} of TensorBoard, of a start that left no checkpoint", root.string(),
           count_text(static_cast<int64_t>(events.size()), "event file"));
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  create_folders(folder, error);
  if (error) fail("{}: cannot make the folder: {}", folder.string(), error.message());
}

/// Whoever made the folder may have put links into it that lead to files of its user.
void check_no_links(const fs::path& root) {
  for (const char* name :
       {".lock", "config.json", "data.json", "metrics.jsonl", "trace.json", "checkpoints"}) {
    std::error_code error;
    if (!fs::is_symlink(root / name, error)) continue;
    fail_usage("{}: a link, which training does not follow; remove it or give another --out",
               (root / name).string());
  }
}

UniqueFd open_metrics(const fs::path& path) {
  make_folder(path.parent_path());
  return open_without_links(path, O_RDWR | O_APPEND);
}

/// Cuts the file after `keep` lines; returns how many there are then. A line that a killed process
/// left unfinished counts as none.
int64_t cut_lines(const UniqueFd& fd, const fs::path& path, int64_t keep) {
  const std::string text = read_text(path, UINT64_MAX, "a file of metrics");
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

/// Returns a row of squares for each layer that has the metric, [H, W] bytes, or nothing without
/// such layers. Square i is expert i: black for 0 or a removed expert, white for twice the layer's
/// mean or more.
std::optional<at::Tensor> expert_squares(const Json& routing, const char* metric) {
  constexpr int64_t kSide = 8, kMaxExperts = 1024;
  std::vector<at::Tensor> rows;
  for (const Json& layer : routing) {
    if (!layer.contains(metric)) continue;
    const at::Tensor kept_K = torch::tensor(layer.at("kept").get<std::vector<int64_t>>());
    const at::Tensor value_K =
        torch::tensor(layer.at(metric).get<std::vector<double>>(), at::kDouble);
    rows.push_back(at::zeros({kept_K.max().item<int64_t>() + 1}, at::kDouble)
                       .index_put_({kept_K}, 127.5 * value_K / value_K.mean()));
  }
  if (rows.empty()) return std::nullopt;
  const at::Tensor grey_LE = at::pad_sequence(rows, /*batch_first=*/true).slice(1, 0, kMaxExperts);
  const at::Tensor bytes_LE = grey_LE.nan_to_num().clamp(0, 255).to(at::kByte);
  return bytes_LE.repeat_interleave(kSide, 0).repeat_interleave(kSide, 1).contiguous();
}

}  // namespace

void RunFolder::check(const fs::path& root, bool resume) {
  if (root.empty()) fail_usage("a run needs a folder; give --out");
  check_folder_path(root, "--out");
  path_exists(root);  // Throws where that cannot be known.
  if (fs::exists(root / "MANIFEST.json")) {
    fail_usage("{}: a checkpoint, not a run; give the run's folder", root.string());
  }
  check_no_links(root);
  if (!resume && holds_something(root)) {
    fail_usage("{}: output directory is not empty; pass {}another --out", root.string(),
               fs::exists(root / "config.json") ? "--resume to continue its run, or " : "");
  }
  if (resume && holds_something(root) && !fs::exists(root / "config.json")) {
    // A run that lost it is as corrupt as one whose config.json cannot be read.
    throw Error(has_checkpoint(root) ? ErrorKind::failure : ErrorKind::usage,
                fmt::format("{}: config.json is missing, so the run cannot be resumed; {}",
                            root.string(), other_folder_hint(root)));
  }
}

std::string RunFolder::other_folder_hint(const fs::path& root) {
  if (!has_checkpoint(root)) return "give another --out";
  return fmt::format("give another --out, where init={} trains its network on", root.string());
}

Json RunFolder::started_config(const fs::path& root) {
  const fs::path path = root / "config.json";
  if (!fs::exists(path)) return nullptr;
  return read_record(
      [&] {
        const Value config = read_stored(path);
        config.members();  // Throws where it is no object.
        return config.to_json();
      },
      other_folder_hint(root));
}

std::optional<RunData> RunFolder::started_data(const fs::path& root) {
  const fs::path path = root / "data.json";
  if (!fs::exists(path)) return std::nullopt;
  return read_record(
      [&] { return std::optional(parse<RunData>(read_stored(path, kMaxListBytes))); },
      "without this file the run resumes, its data unchecked");
}

RunFolder::RunFolder(fs::path root, bool resume) : root_(std::move(root)) {
  make_folder(root_);
  lock_.emplace(root_);     // What lies in a folder that another one holds is not ours to remove.
  check(root_, resume);     // again: another process may have used it before the lock was ours
  remove_leftovers(root_);  // This may put `best` back, which is kept then.
  make_folder(root_ / "checkpoints");
  remove_leftovers(root_ / "checkpoints");
  if (!has_checkpoint(root_)) keep_results(root_);
  if (!resume) remove_start(root_);
}

RunFolder RunFolder::from_rank_zero(fs::path root) {
  RunFolder folder;
  folder.root_ = std::move(root);
  return folder;
}

void RunFolder::set_damaged_aside(const fs::path& resumed) const {
  for (const fs::path& step : step_checkpoints(root_ / "checkpoints")) {
    if (*step_of(step) <= *step_of(resumed)) return;
    const fs::path kept = set_aside(step, "damaged");
    log_warning("{}: corrupt; it is kept as {}", step.string(), kept.filename().string());
  }
}

MetricsWriter::MetricsWriter(const fs::path& folder, int64_t keep_lines)
    : path_(folder / "metrics.jsonl"),
      fd_(open_metrics(path_)),
      lines_(cut_lines(fd_, path_, keep_lines)),
      events_(folder) {
  if (lines_ < keep_lines) {
    log_warning("{}: of {} that were written, {} are left", path_.string(),
                count_text(keep_lines, "line"), lines_);
  }
  sync_path(folder);  // It names the two files.
}

void MetricsWriter::write(const std::string& kind, int64_t step, const Json& fields,
                          const std::string& tag) {
  Json line = {{"kind", kind}, {"step", step}};
  line.update(fields);
  const std::string text = line.dump() + "\n";
  write_all(fd_.get(), std::as_bytes(std::span(text)), path_);
  ++lines_;
  for (const auto& [key, value] : fields.items()) {
    if (value.is_number()) add_scalar(tag + "/" + key, value.get<double>(), step);
  }
  const Json routing = fields.value("routing", Json::array());
  for (const char* metric : kExpertMetrics) {
    for (const Json& layer : routing) {
      if (!layer.contains(metric)) continue;
      events_.add_histogram(
          fmt::format("{}/block_{}/{}", tag, layer.at("layer").get<int64_t>(), metric),
          layer.at(metric).get<std::vector<double>>(), step);
    }
    const auto squares = kind == "eval" ? expert_squares(routing, metric) : std::nullopt;
    if (!squares) continue;
    events_.add_image(fmt::format("{}/experts/{}", tag, metric),
                      {{squares->const_data_ptr<uint8_t>(), squares->nbytes()},
                       squares->size(0),
                       squares->size(1),
                       1},
                      step);
  }
}

void MetricsWriter::sync() {
  sync_fd(fd_.get(), path_);
  events_.flush();
}

double rounded(double value, int digits) {
  return std::stod(fmt::format("{:.{}g}", value, digits));
}

Json rounded_numbers(Json json) {
  for (auto& [key, value] : json.items()) {
    if (value.is_number_float()) value = rounded(value.get<double>());
    if (value.is_object()) value = rounded_numbers(value);
  }
  return json;
}

}  // namespace moesaic
