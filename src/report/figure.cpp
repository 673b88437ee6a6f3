// SPDX-License-Identifier: Apache-2.0
// What gnuplot draws, and the scripts of panels that it draws them by.
#include "moesaic/report/figure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>
#include <system_error>

#include "moesaic/base/error.h"
#include "moesaic/base/file.h"
#include "moesaic/base/path.h"
#include "moesaic/base/process.h"
#include "moesaic/base/text.h"
#include "panels.h"

namespace moesaic {
namespace {

/// A hidden folder for files that go into `folder`, whose names messages show. It is removed on
/// destruction.
class ScratchDir {
 public:
  explicit ScratchDir(const fs::path& folder) : path_(unique_sibling(folder / ".")) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) {
      const fs::path place = folder.empty() ? fs::current_path() : fs::absolute(folder);
      fail("{}: cannot write here: {}", place.string(), error.message());
    }
    lock_ = lock_folder(path_);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  UniqueFd lock_;
};

/// Returns ": " and the last line that gnuplot wrote, which says what was wrong, "" without one.
std::string reason(std::string said) {
  said.erase(said.find_last_not_of(" \n") + 1);
  return said.empty() ? "" : ": " + one_line(said.substr(said.rfind('\n') + 1));
}

/// Throws Error unless gnuplot drew the file to its end: on a full disk it says nothing and
/// succeeds.
void check_drawn(const fs::path& drawn, const fs::path& file) {
  if (!fs::exists(drawn) || fs::is_empty(drawn)) fail("{}: gnuplot drew nothing", file.string());
  sync_path(drawn);
  std::string text = read_text(drawn);
  text.erase(text.find_last_not_of('\n') + 1);
  const bool whole = file.extension() == ".png" ? text.ends_with("IEND\xAE\x42\x60\x82")
                                                : text.ends_with("</svg>");
  if (!whole) {
    fail("{}: gnuplot could not write the whole figure; free some space on the disk",
         file.string());
  }
}

/// Draws `files` from the script and its data, and moves all of them to `folder`, or none if one
/// cannot be made.
void draw_in(const fs::path& folder, const std::string& stem, const Figure& figure,
             std::vector<std::string> files) {
  const ScratchDir scratch_dir(folder);
  const std::string script = stem + ".gp", data = stem + ".tsv";
  try {
    write_atomic(scratch_dir.path() / script, figure.script);
    write_atomic(scratch_dir.path() / data, figure.data);
  } catch (const IoError& error) {
    fail("{}: not drawn: {}", (folder / files[0]).string(), error.what());
  }
  // gnuplot warns of entries of a key that have no points and of fonts that a machine lacks. That
  // is nothing to a user whose figure was drawn. In a locale without UTF-8 it could not show some
  // characters.
  std::string said;
  const int status =
      run_with_input({"gnuplot"}, figure.script, {"LC_ALL=C.UTF-8"}, scratch_dir.path(), &said);
  if (status != 0) {
    fail("{}: gnuplot failed with status {}{}", (folder / files[0]).string(), status, reason(said));
  }
  for (const std::string& file : files) check_drawn(scratch_dir.path() / file, folder / file);
  files.insert(files.end(), {script, data});
  for (const std::string& file : files) {
    std::error_code error;
    fs::rename(scratch_dir.path() / file, folder / file, error);
    if (error) fail("{}: cannot rename into place: {}", (folder / file).string(), error.message());
  }
}

constexpr std::string_view kStyle = R"(set datafile separator tab
set encoding utf8
set datafile missing '-'
array color[8] = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#999999', \
  '#F0E442']
colour_of(i) = color[1 + (i - 1) % 8]
dash_of(i) = 1 + (i - 1) / 8
ink = '#333333'
set border 3 lc rgb '#666666' lw 0.8
set tics nomirror out scale 0.4 textcolor rgb ink
set grid ytics lt 1 lc rgb '#E2E2E2' lw 0.8
set errorbars 0
set style fill transparent solid 0.2 noborder
svg(width, height) = sprintf("set terminal svg size %d,%d dynamic enhanced \
  font 'Helvetica,Arial,sans-serif,14' background rgb 'white'", width, height)
png(width, height) = sprintf("set terminal pngcairo size %d,%d enhanced \
  font 'DejaVu Sans,20' linewidth 2 pointscale 2 background rgb 'white'", 2 * width, 2 * height)
)";

/// Returns the commands for the names along an axis; of more than `most` every n-th is shown.
std::string axis_names(const char* axis, const std::vector<std::string>& names, size_t most) {
  constexpr size_t kShown = 20;
  const size_t step = names.size() > most ? (names.size() + kShown - 1) / kShown : 1;
  return fmt::format("  set {}tics {}{}\n", axis, named_tics(names, step),
                     *axis == 'x' ? " rotate by -45" : "");
}

/// Returns the title as an expression of lines that are no wider than the panel, where it is known.
std::string title_lines(std::string title, int width) {
  if (width == 0) return plot_name(title);
  std::replace(title.begin(), title.end(), '_', ' ');
  constexpr int kCharacter = 9;  // Pixels of an average one.
  std::string lines;
  for (const std::string& line :
       split(wrapped(title, static_cast<size_t>(width / kCharacter), ""), '\n')) {
    lines += (lines.empty() ? "" : ".\"\\n\".") + plot_name(line);
  }
  return lines;
}

/// Returns the commands of a scale up to `most`, and down to -`most` where numbers have a sign; 0
/// is in the middle of the palette. Where colours follow square roots the numbers beside it do not.
std::string scale_commands(double most, bool has_sign, bool uses_sqrt_colors) {
  const double end = most == 0.0 ? 1.0 : uses_sqrt_colors ? std::sqrt(most) : most;
  std::string tics = "autofreq";
  if (uses_sqrt_colors && most > 0.0) {
    std::set<double> shown;
    for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      shown.insert(std::round(most * part * part));
    }
    tics = "(";
    for (const double number : shown) {
      tics +=
          fmt::format("{}'{:.0f}' {:.6g}", tics.size() > 1 ? ", " : "", number, std::sqrt(number));
    }
    tics += ")";
  }
  return fmt::format(
      "  set palette defined ({}0 '#FFFFFF', 1 '#0072B2')\n  set cbrange [{:.6g}:{:.6g}]\n"
      "  set cbtics {}\n",
      has_sign ? "-1 '#D55E00', " : "", has_sign ? -end : 0.0, end, tics);
}

}  // namespace

std::string gnuplot_quoted(const std::string& text) {
  std::string result = "'";
  // A line break would end the string, and the rest would run as commands.
  for (const char c : one_line(text, text.size())) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

void check_can_write(const fs::path& folder) {
  const ScratchDir can_write(folder);
}

void check_can_draw(const fs::path& folder) {
  if (find_program("gnuplot").empty()) {
    fail(
        "gnuplot: no such program on PATH; figures are drawn by it: install it, e.g. gnuplot-nox "
        "of Debian");
  }
  check_can_write(folder);
}

void check_new_figure(const fs::path& file, const std::string& what) {
  const std::string extension = file.extension().string();
  if (extension != ".png" && extension != ".svg") {
    fail_usage("{}: the figure's name must end in .png or .svg, found '{}'", what, file.string());
  }
  for (const fs::path& path :
       {file, fs::path(file).replace_extension(".gp"), fs::path(file).replace_extension(".tsv")}) {
    check_new_file(path, what);
  }
  check_can_draw(file.parent_path());
}

void draw_figure(const fs::path& folder, const Figure& figure, const std::string& stem) {
  draw_in(folder, stem, figure, {stem + ".svg", stem + ".png"});
}

void draw_figure_file(const fs::path& file, const Figure& figure) {
  draw_in(file.parent_path(), file.stem().string(), figure, {file.filename().string()});
}

void Panel::plot(std::string data, const std::string& how) {
  blocks.push_back(std::move(data));
  plot_again(how);
}

void Panel::plot_again(const std::string& how) {
  plots.push_back(fmt::format("data index first + {} {}", blocks.size() - 1, how));
}

Panel heatmap_panel(const HeatMap& map) {
  constexpr size_t kMaxColumnNames = 40;  // Tables of more columns are wide.
  const MeasuredTable& table = map.table;
  std::string data = "# column\trow\tvalue\n";
  double most = 0.0, least = 0.0;
  bool any = false;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    for (size_t c = 0; c < table.columns.size(); ++c) {
      const double value = table.values[r][c];
      if (!std::isfinite(value)) continue;
      data += fmt::format("{}\t{}\t{:.{}f}\n", c, r, value, map.digits);
      most = std::max(most, std::abs(value));
      least = std::min(least, value);
      any = true;
    }
  }
  if (!any) return panel_of_nothing();
  Panel panel{fmt::format(
      "  unset grid\n  set style fill solid noborder\n  set colorbox\n  unset key\n  "
      "set title {} textcolor rgb ink\n{}{}{}{}"
      "  set xrange [-0.5:{}.5]\n  set yrange [{}.5:-0.5]\n{}",
      title_lines(map.title, map.width), axis_label("x", map.x_label), axis_label("y", map.y_label),
      axis_names("x", table.columns, kMaxColumnNames),
      axis_names("y", table.rows, map.names_every_row ? table.rows.size() : kMaxColumnNames),
      table.columns.size() - 1, table.rows.size() - 1,
      scale_commands(most, least < 0.0, map.uses_sqrt_colors))};
  // The entries are boxes, since gnuplot's images have at least two rows and columns.
  panel.plot(data, fmt::format("using 1:2:($1 - 0.5):($1 + 0.5):($2 - 0.5):($2 + 0.5):{} with "
                               "boxxyerror fc palette fs solid noborder notitle",
                               map.uses_sqrt_colors ? "(sqrt($3))" : "3"));
  // Numbers on dark boxes are white.
  if (map.shows_numbers) {
    panel.plot_again(
        fmt::format("using 1:2:3:(abs($3) > {:.6g} ? 0xFFFFFF : 0x333333) with labels "
                    "textcolor rgb variable notitle",
                    (map.uses_sqrt_colors ? 0.4 : 0.6) * most));
  }
  return panel;
}

Panel panel_of_nothing() {
  return {"  set title 'no run has a value' textcolor rgb ink\n", {"[0:1] [0:1] -1 notitle"}};
}

std::string range_commands(const Metric& metric) {
  return fmt::format("  within(y) = y < {0:.6g} ? {0:.6g} : y > {1:.6g} ? {1:.6g} : y\n",
                     metric.min, metric.max);
}

std::string axis_label(const char* axis, const std::string& label) {
  return label.empty()
             ? ""
             : fmt::format("  set {}label {} textcolor rgb ink\n", axis, plot_name(label));
}

std::string plot_name(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (std::string_view("^{}@&~\\").find(c) != std::string_view::npos) text += '\\';
    text += c == '_' ? ' ' : c;
  }
  return gnuplot_quoted(text);
}

std::string padded_range(const std::vector<double>& values) {
  if (values.empty()) return "[0:1]";  // gnuplot draws an empty panel in a range that is given.
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  const double room =
      std::max(0.05 * (*max - *min), *max > *min ? 0.0 : 0.05 * std::abs(*max) + 1e-3);
  return fmt::format("[{:.6g}:{:.6g}]", *min - room, *max + room);
}

std::string named_tics(const std::vector<std::string>& names, size_t step) {
  std::string tics;
  for (size_t i = 0; i < names.size(); i += step) {
    std::string name;  // A tic's label is a format.
    for (const char c : names[i]) name += c == '%' ? std::string("%%") : std::string(1, c);
    tics += fmt::format("{}{} {}", i == 0 ? "" : ", ", plot_name(name), i);
  }
  return "(" + tics + ")";
}

Figure panel_figure(const std::string& stem, const std::vector<Panel>& panels,
                    const PanelGrid& grid) {
  const int count = static_cast<int>(panels.size());
  const int columns = std::min(grid.columns, count), rows = (count + columns - 1) / columns;
  const int margins_x = grid.fits_margins ? 0 : grid.left + grid.right;
  const int margins_y = grid.fits_margins ? 0 : grid.top + grid.bottom;
  const int width = margins_x + columns * grid.width + (columns - 1) * grid.gap_x;
  const int height = margins_y + rows * grid.height + (rows - 1) * grid.gap_y;
  const auto across = [&](int pixels) { return static_cast<double>(pixels) / width; };
  const auto up = [&](int pixels) { return static_cast<double>(pixels) / height; };
  Figure figure;
  figure.script = fmt::format(
      "# gnuplot {0}.gp draws {0}.svg and {0}.png from {0}.tsv\nstem = {1}\ndata = {2}\n{3}"
      "do for [ending in 'svg png'] {{\n"
      "  eval (ending eq 'svg' ? svg({4}, {5}) : png({4}, {5}))\n  set output stem.'.'.ending\n",
      one_line(stem), gnuplot_quoted(stem), gnuplot_quoted(stem + ".tsv"), kStyle, width, height);
  if (!grid.fits_margins) {
    figure.script += fmt::format(
        "  set multiplot layout {},{} margins screen {:.4f}, screen {:.4f}, screen {:.4f}, "
        "screen {:.4f} \\\n    spacing screen {:.4f}, screen {:.4f}\n",
        rows, columns, across(grid.left), 1.0 - across(grid.right), up(grid.bottom),
        1.0 - up(grid.top), across(grid.gap_x), up(grid.gap_y));
  }
  int first = 0;
  for (const Panel& panel : panels) {
    figure.script += fmt::format("  first = {}\n{}  plot {}\n", first, panel.commands,
                                 fmt::join(panel.plots, ", \\\n    "));
    for (const std::string& block : panel.blocks) {
      figure.data += (figure.data.empty() ? "" : "\n\n") + block;  // Blank lines end a block.
    }
    first += static_cast<int>(panel.blocks.size());
  }
  figure.script += grid.fits_margins ? "}\n" : "  unset multiplot\n}\n";
  return figure;
}

}  // namespace moesaic
