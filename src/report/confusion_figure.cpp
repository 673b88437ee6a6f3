// SPDX-License-Identifier: Apache-2.0
#include "moesaic/report/confusion_figure.h"

#include <fmt/format.h>

#include <algorithm>

#include "moesaic/base/csv.h"
#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/text.h"
#include "moesaic/report/tsne_figure.h"
#include "plots/panels.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

bool is_csv(const fs::path& file) {
  return file.extension() == ".csv";
}

MeasuredTable confusion_table(const Confusion& confusion, const std::vector<std::string>& classes) {
  MeasuredTable table{classes, classes, {}};
  const auto count = static_cast<int64_t>(classes.size());
  for (int64_t label = 0; label < count; ++label) {
    table.values.emplace_back();
    for (int64_t predicted = 0; predicted < count; ++predicted) {
      table.values.back().push_back(static_cast<double>(confusion.count(label, predicted)));
    }
  }
  return table;
}

/// Returns sizes in which the names of the classes fit, as far as they are shown.
PanelGrid grid_of(const std::vector<std::string>& classes, bool names, int cell) {
  size_t longest = 0;
  for (const std::string& name : classes) longest = std::max(longest, count_characters(name));
  const int room = names ? 8 * static_cast<int>(std::min<size_t>(longest, 40)) : 0;
  const int side = std::max(400, cell * static_cast<int>(classes.size()));
  return {.width = side,
          .height = side,
          .left = 60 + room,
          .right = 30 + 3 * room / 4,
          .bottom = 60 + 3 * room / 4};
}

}  // namespace

void check_new_confusion(const fs::path& file, const std::string& what) {
  const std::string extension = file.extension().string();
  if (extension == ".csv") {
    check_new_file(file, what);
    return check_can_write(file.parent_path());
  }
  if (extension != ".png" && extension != ".svg") {
    fail_usage("{}: the file's name must end in .png, .svg or .csv, found '{}'", what,
               file.string());
  }
  check_new_figure(file, what);
}

void check_confusion_classes(const DatasetInfo& data, const fs::path& file) {
  if (data.classes.empty()) {
    fail_usage("{}: the targets of '{}' are real numbers, which nothing confuses", file.string(),
               data.name);
  }
  if (!is_csv(file) && data.classes.size() > kMaxFigureClasses) {
    fail_usage("{}: a figure shows at most {} classes, '{}' has {}; choose a name ending in .csv",
               file.string(), kMaxFigureClasses, data.name, data.classes.size());
  }
}

std::string confusion_csv(const Confusion& confusion, const std::vector<std::string>& classes) {
  std::vector<std::string> heading = {"true \\ predicted"};
  heading.insert(heading.end(), classes.begin(), classes.end());
  std::string text = csv_line(heading);
  const auto count = static_cast<int64_t>(classes.size());
  for (int64_t label = 0; label < count; ++label) {
    std::vector<std::string> line = {classes[static_cast<size_t>(label)]};
    for (int64_t i = 0; i < count; ++i) line.push_back(fmt::to_string(confusion.count(label, i)));
    text += csv_line(line);
  }
  return text;
}

Figure confusion_figure(const Confusion& confusion, const std::vector<std::string>& classes,
                        const std::string& title, const std::string& stem) {
  constexpr size_t kMaxNumbers = 25, kMaxNames = 60;
  const bool numbers = classes.size() <= kMaxNumbers, names = classes.size() <= kMaxNames;
  const Panel panel = heatmap_panel({.title = title,
                                     .x_label = "predicted class",
                                     .y_label = "true class",
                                     .table = confusion_table(confusion, classes),
                                     .numbers = numbers,
                                     .names = names,
                                     .root_colors = true});
  return panel_figure(stem, {panel}, grid_of(classes, names, numbers ? 48 : names ? 18 : 8));
}

void write_confusion(const Confusion& confusion, const std::vector<std::string>& classes,
                     const std::string& title, const fs::path& file) {
  if (is_csv(file)) return write_atomic(file, confusion_csv(confusion, classes));
  draw_figure_file(file, confusion_figure(confusion, classes, title, file.stem().string()));
}

}  // namespace moesaic
